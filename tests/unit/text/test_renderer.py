from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tiny_tokenizer import TEMPLATE, write_tokenizer
from transformers import AutoTokenizer

from stoker.config.checkpoint.chat_templates import TemplateSource
from stoker.engine.api import InvalidRequest
from stoker.isolated.isolation import IsolatedProcesses
from stoker.text.renderer import Renderer, TemplateProblem
from stoker.text.template_jobs import TEMPLATE_JOBS
from stoker.text.tokenizer import Tokenizer

from .processes import PROCESSES

HASTY, PATIENT = (IsolatedProcesses(TEMPLATE_JOBS, time_limit_s=limit_s) for limit_s in (0.1, 1000))

HELLO = [{"role": "user", "content": "Hello <b>&</b>"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
LOOPING = "{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endfor %}"
EITHER = "{% for m in messages %}{% if m.content is string %}s:{{ m.content }}{% else %}" + (
    "{% for part in m['content'] %}[{{ part['text'] }}]{% endfor %}{% endif %}{% endfor %}"
)
DEVELOPER = (
    "{% for m in messages %}{% if m.role in ['user', 'developer'] %}{{ m.role }}: {{ m.content }}"
    "{% endif %}{% endfor %}"
)
TEMPLATES = {
    "plain": TEMPLATE,
    "trim and blocks": "{% for m in messages %}\n    {% if true %}\n  {{- m.role -}}\n    {% endif %}\n{% endfor %}\n",
    "loop controls": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "generation tag": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "tojson": "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}",
    "special tokens": "{{ bos_token is defined }}{{ eos_token }}{{ pad_token }}",
    "methods": "{{ messages[0].content.split('<')[0].strip().upper() }}{{ messages[0]['role'][::-1] }}",
    "either": EITHER,
}


@pytest.fixture
def renderer(tokenizer: Tokenizer) -> Callable[[str], Renderer]:
    return lambda template: Renderer(tokenizer, TemplateSource(template, "a.jinja"), processes=PROCESSES)


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_equal_those_of_transformers(folder: Path, renderer: Callable[[str], Renderer], name: str):
    reference = AutoTokenizer.from_pretrained(str(folder))
    messages = [*HELLO, {"role": "assistant", "content": "Grüße 😀", "name": None}]
    tools = [{"type": "function", "function": {"name": "f", "description": "ü"}}]
    for with_tools in (None, tools):
        expected = reference.apply_chat_template(
            messages, tools=with_tools, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=True
        )
        assert renderer(TEMPLATES[name]).render(messages, tools=with_tools) == expected


@pytest.mark.parametrize(
    ("template", "messages", "prompt"),
    [
        (LOOPING, PARTS, "[one][two]"),
        (LOOPING, HELLO, "[Hello <b>&</b>]"),
        (EITHER, PARTS, "[one][two]"),
        (EITHER, HELLO, "s:Hello <b>&</b>"),
        ("{{ messages[0].content }}", PARTS, "one\ntwo"),
        ("{{ messages[0].content }}", [{"role": "user", "content": None}], ""),
        ("{{ messages[0].role }}", [{"role": "developer", "content": ""}], "system"),
        (DEVELOPER, [{"role": "developer", "content": "x"}], "developer: x"),
    ],
)
def test_messages_get_the_form_that_the_template_expects(
    renderer: Callable[[str], Renderer], template: str, messages: list[dict[str, Any]], prompt: str
):
    assert renderer(template).render(messages) == prompt


def test_arguments_of_tool_calls_are_objects_in_templates(renderer: Callable[[str], Renderer]):
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": [1, 2]}'}}
    template = "{{ messages[0].tool_calls[0].function.arguments.a[1] }}"
    assert renderer(template).render([{"role": "assistant", "tool_calls": [call]}]) == "2"


ATTRIBUTE = "the chat template refused the messages: access to attribute {!r} of {!r} object is unsafe."
CHARACTERS = "the chat template exceeded a limit: more than 67108864 characters"
RAISES = "the chat template cannot render these messages ({})"
TIME = "the chat template exceeded a limit: more than 0.1 s"
# template -> what it ends with
HOSTILE = {
    "{{ ''.__class__.__mro__[1].__subclasses__() }}": ATTRIBUTE.format("__class__", "str"),
    "{{ messages.__init__.__globals__ }}": ATTRIBUTE.format("__init__", "list"),
    "{{ cycler.__init__.__globals__.os.system('touch canary') }}": ATTRIBUTE.format("__init__", "type"),
    "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}": ATTRIBUTE.format("__init__", "Undefined"),
    "{{ messages.append(1) }}": ATTRIBUTE.format("append", "list"),
    "{{ messages[0].update({'role': 'x'}) }}": ATTRIBUTE.format("update", "dict"),
    "{{ namespace(**{'__init__': 1}).__init__.__globals__ }}": ATTRIBUTE.format("__init__", "_Namespace"),
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}": (
        "the chat template refused the messages: a namespace cannot have an attribute '__class__'"
    ),
    "{{ 2 ** 1000000000 }}": "the chat template refused the messages: the operator '**' is not available here",
    "{{ '%1000000000d' % 1 }}": "the chat template refused the messages: the operator '%' is not available here",
    "{{ '\\ud800' }}": RAISES.format("half of a surrogate pair"),  # it was a 500
    "{{ lipsum(n=1000000) }}": "the chat template refused the messages: 'lipsum' is undefined",
    "{{ missing.attribute }}": "the chat template refused the messages: 'missing' is undefined",
    "{{ 'x' * 10000000000 }}": CHARACTERS,
    "{{ [0] * 10000000000 }}": CHARACTERS,
    "{% set ns = namespace(s='xxxx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}": CHARACTERS,
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}": TIME,
    "{% for i in range(100000) %}{% for j in range(100000) %}{{ messages[0].content }}{% endfor %}{% endfor %}": TIME,
    "{% set r = range(999) %}{% for i in r %}{% for j in r %}{% for k in r %}{%endfor%}{%endfor%}{%endfor%}": TIME,
    "{{ ([range(99999)] * 6000000) | map('sum') | sum }}": TIME,
    "{% set r = range(99999) %}{% for i in r recursive %}{{ loop(r) }}{% endfor %}": RAISES.format("RecursionError"),
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": RAISES.format("RecursionError"),
    "{{ 1 / 0 }}": RAISES.format("ZeroDivisionError"),
    "{{ messages[0].content + 1 }}": RAISES.format("TypeError"),
}


@pytest.mark.parametrize(
    ("template", "refusal"),
    HOSTILE.items(),
    ids=range(len(HOSTILE)),
)
@pytest.mark.quick_cases(4)
def test_a_hostile_or_broken_template_is_refused(
    tokenizer: Tokenizer, template: str, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    source = TemplateSource(template, "a.jinja")
    with pytest.raises(InvalidRequest) as caught:
        Renderer(tokenizer, source, processes=HASTY if refusal == TIME else PATIENT).render(HELLO)
    assert str(caught.value) == refusal
    assert list(tmp_path.iterdir()) == []


def test_an_unsafe_item_of_a_string_is_undefined(renderer: Callable[[str], Renderer]):
    assert renderer("[{{ ''['__class__'] }}]{% for x in ''.__class__ %}{{ x }}{% endfor %}").render(HELLO) == "[]"


def test_a_template_with_a_syntax_error_is_reported_with_its_line(renderer: Callable[[str], Renderer]):
    with pytest.raises(TemplateProblem, match=r"^chat template a\.jinja, line 2: "):
        renderer("{{ x }}\n{% if %}")


def test_the_template_named_tool_use_is_used_for_requests_with_tools(tmp_path: Path):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path, template=None, chat_template=named))
    assert Renderer(tokenizer, processes=PROCESSES).render(HELLO) == "plain"
    assert Renderer(tokenizer, processes=PROCESSES).render(HELLO, tools=[{}]) == "tools"


def test_a_template_file_overrides_the_tokenizer_configuration(tmp_path: Path):
    folder = write_tokenizer(tmp_path)
    (folder / "chat_template.jinja").write_text("the file")
    assert Renderer(Tokenizer.load(folder), processes=PROCESSES).render(HELLO) == "the file"


def test_a_request_can_set_only_names_that_the_template_reads(renderer: Callable[[str], Renderer]):
    found = renderer("{{ enable_thinking }}{{ eos_token }}{{ range(3) }}{% set mine = 1 %}{{ mine }}{{ messages }}")
    assert found.template_variables() == {"enable_thinking"}
    assert {"messages", "eos_token", "chat_template"} <= found.reserved


def test_templates_can_print_the_date(renderer: Callable[[str], Renderer]):
    assert renderer("{{ strftime_now('%Y') | int > 2020 }}").render(HELLO) == "True"
