"""The processes in which templates are compiled and rendered, and how they are ended."""

from __future__ import annotations

import asyncio

import pytest
from tests.tiny_tokenizer import TEMPLATE

from stoker.config.checkpoint.chat_templates import TemplateSource
from stoker.engine.api import InvalidRequest
from stoker.isolated.isolation import IsolatedProcesses
from stoker.text import template
from stoker.text.chat_template import CannotCompile, ChatTemplate, LimitExceeded
from stoker.text.renderer import Renderer, TemplateProblem
from stoker.text.template import Rendering, Template
from stoker.text.template_environment import TemplateEnvironment
from stoker.text.template_jobs import TEMPLATE_JOBS
from stoker.text.tokenizer import Tokenizer

from .processes import PROCESSES

HELLO = [{"role": "user", "content": "Hello"}]
HASTY = IsolatedProcesses(TEMPLATE_JOBS, time_limit_s=0.2)
NESTED = "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(28) %}{% set ns.a = [ns.a, ns.a] %}" + (
    "{% set ns.b = [ns.b, ns.b] %}{% endfor %}"
)
# Each takes minutes or gigabytes in one operation of C, which no time check within the process can end.
BOMBS = {
    "{{ ([[1]] * 400000) | sum(start=[]) | length }}": "more than 0.2 s",
    NESTED + "{{ ns.a == ns.b }}": "more than 0.2 s",
    "{{ '%3000000000d' | format(1) | length }}": "more memory than it may use",
    "{{ 'x' | center(3000000000) | length }}": "more memory than it may use",
    "{{ range(99999) | join('x' * 60000) | length }}": "more memory than it may use",
}


@pytest.mark.parametrize("source", BOMBS)
@pytest.mark.quick_cases(1, source=list(BOMBS)[1:])
def test_a_template_is_ended_at_its_limits_also_within_one_operation(tokenizer: Tokenizer, source: str):
    """Before, it held the interpreter for minutes, and /health with it."""
    renderer = Renderer(tokenizer, TemplateSource(source, "a.jinja"), processes=HASTY)
    message = f"the chat template exceeded a limit: {BOMBS[source]}"
    assert renderer.problem() == f"a.jinja: {message}"
    with pytest.raises(LimitExceeded) as caught:
        renderer.render(HELLO)
    assert str(caught.value) == message
    assert Template.compile(HASTY, "{{ messages[0].content }}").render(Rendering(HELLO, {})) == "Hello"


def test_values_arrive_in_the_process_as_they_are():
    values = {"big": 10**40, "negative": -(2**70), "float": 1.5, "none": None, "text": "ü😀\u2028", "list": [[], {}]}
    source = "{{ v.big + 1 }} {{ v.negative }} {{ v.float }} {{ v.none }} {{ v.text }} {{ v.list }}"
    rendered = Template.compile(PROCESSES, source).render(Rendering(HELLO, {"v": values}))
    assert rendered == ChatTemplate(TemplateEnvironment(1000), source).render(HELLO, {"v": values})


def test_errors_are_those_of_a_template_in_this_process():
    with pytest.raises(CannotCompile) as failed:
        Template.compile(PROCESSES, "{{ x }}\n{% if %}")
    assert failed.value.line == 2
    broken = [{"role": "user", "tool_calls": [{"function": "f"}]}]
    with pytest.raises(InvalidRequest) as caught:
        Template.compile(PROCESSES, "{{ messages }}").render(Rendering(broken, {}))
    assert caught.value.param == "messages[0].tool_calls[0].function"


DEEP = "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"


@pytest.mark.parametrize("source", [DEEP, "{% if x %}" * 500 + "{% endif %}" * 500, "{{ " + "-" * 100_000 + "1 }}"])
def test_a_template_that_is_nested_too_deeply_ends_the_start_with_a_sentence(tokenizer: Tokenizer, source: str):
    with pytest.raises(TemplateProblem, match=r"^chat template a\.jinja: it is nested too deeply"):
        Renderer(tokenizer, TemplateSource(source, "a.jinja"), processes=PROCESSES)


BOMB = "{% if messages[0].content == 'now' %}" + NESTED + "{{ ns.a == ns.b }}{% endif %}{{ messages[0].content }}"
HARMLESS = {
    "plain": TEMPLATE,
    "methods": "{{ messages[0].content.split('<')[0].strip().upper() }}",
    "condition": "{% for m in messages %}{% if m.role in ['user', 'tool'] and loop.index0 % 2 == 0 %}"
    "{{ m.content | trim }}{% endif %}{% endfor %}",
}
# name -> a template whose time does not only depend on the number of its operations
NOT_HARMLESS = {
    "hidden": BOMB,
    "constant": "{% if messages[0].n %}{{ 'x' * 99999999 }}{% endif %}",
    "product": "{{ 'x' * messages[0].n }}",
    "list": "{% set x = [messages, messages] %}",
    "range": "{{ range(99999) | list }}",
    "join": "{{ messages | join(messages[0].content) }}",
    "replace": "{{ messages[0].content.replace('', 'xxxx') }}",
    "indent": "{{ messages | tojson(indent=100000) }}",
    "macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursion": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "argument": "{{ messages[0].content.strip(messages[1].content) }}",
    "arguments": "{{ messages[0].content.strip(*messages) }}",
    "filter": "{% filter center(999999999) %}x{% endfilter %}",
    "import": "{% import 'x' as y %}",
    "date": "{{ strftime_now(messages[0].content) }}",
}


@pytest.mark.parametrize("name", [*HARMLESS, *NOT_HARMLESS])
def test_only_a_harmless_template_is_rendered_in_the_server(tokenizer: Tokenizer, name: str):
    renderer = Renderer(tokenizer, TemplateSource((HARMLESS | NOT_HARMLESS)[name], "a.jinja"), processes=PROCESSES)
    assert (renderer.template(with_tools=False)._local is not None) == (name in HARMLESS)


@pytest.mark.slow
def test_a_harmless_template_that_is_slow_is_moved_to_the_processes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(template, "LOCAL_S", -1.0)
    slow = Template.compile(PROCESSES, "{% for m in messages %}{{ m.content }}{% endfor %}")
    slow.allow_local()

    async def render() -> str:
        return await slow.render_async(Rendering(HELLO, {}), is_short=True)

    for num in range(template.MAX_SLOW):
        assert slow._local is not None, num
        assert asyncio.run(render()) == "Hello"
    assert slow._local is None


@pytest.mark.slow
def test_in_the_server_values_of_a_template_are_small():
    grows = "{% set ns = namespace(s='xxxx', n=3) %}{% for m in messages %}{% set ns.s = ns.s + ns.s %}{% endfor %}"
    environment = TemplateEnvironment(1000, max_chars=100)
    with pytest.raises(LimitExceeded, match="more than 100 characters"):
        ChatTemplate(environment, grows).render(HELLO * 9, {})
    numbers = "{% set ns = namespace(n=3) %}{% for m in messages %}{% set ns.n = ns.n + ns.n %}{% endfor %}"
    with pytest.raises(LimitExceeded, match="a number of more than 65536 bits"):
        ChatTemplate(environment, numbers).render([{"role": "user", "content": ""}] * 70_000, {})
