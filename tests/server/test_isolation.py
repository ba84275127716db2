from __future__ import annotations

import asyncio
import gc
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.slow_cases import slow_but

from stoker.config.checkpoint.chat_templates import TemplateSource
from stoker.engine.api import InvalidRequest
from stoker.server import endpoint
from stoker.server.isolated import isolation
from stoker.server.isolated.isolation import NUM_PROCESSES, CannotCompile, IsolatedProcesses
from stoker.server.protocol import json
from stoker.server.routes import invocations
from stoker.server.text import template
from stoker.server.text.chat_template import ChatTemplate, LimitExceeded, TemplateEnvironment
from stoker.server.text.renderer import Renderer, TemplateProblem
from stoker.server.text.template import Rendering, Template
from stoker.server.text.tokenizer import Tokenizer

from .deployment import MODEL, PROCESSES, Served
from .tiny_tokenizer import TEMPLATE, write_tokenizer

HELLO = [{"role": "user", "content": "Hello"}]
HASTY = IsolatedProcesses(time_limit_s=0.2)
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
    broken = [{"role": "user", "tool_calls": [{"function": {"arguments": "[" * 100_000}}]}]
    with pytest.raises(InvalidRequest) as caught:
        Template.compile(PROCESSES, "{{ messages }}").render(Rendering(broken, {}))
    assert caught.value.param == "messages[0].tool_calls[0].function.arguments"


def test_a_process_that_has_ended_is_started_again():
    processes = IsolatedProcesses()
    chat = Template.compile(processes, "{{ messages[0].content }}")
    for number in (signal.SIGKILL, signal.SIGSEGV):
        running = processes._processes[0]._process
        assert running is not None
        running.send_signal(number)
        running.wait()
        assert chat.render(Rendering(HELLO, {})) == "Hello"
    processes.close()
    assert processes._processes[0]._process is None


def test_a_process_that_does_not_start_is_no_fault_of_the_template(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(isolation, "_MODULE", "stoker.missing")
    with pytest.raises(OSError, match=r"did not start: its process ended \(exit code 1\)"):
        Template.compile(IsolatedProcesses(), "x")


def test_the_process_gets_no_secrets_and_ends_with_its_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("API_KEY", "secret")
    processes = IsolatedProcesses()
    Template.compile(processes, "x")
    process = processes._processes[0]
    running = process._process
    assert running is not None
    environment = Path(f"/proc/{running.pid}/environ")
    if environment.exists():
        assert b"secret" not in environment.read_bytes()
    process.socket.close()  # as when the server ends
    assert running.wait(60) == 0
    processes.close()


DEEP = "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"


@pytest.mark.parametrize("source", [DEEP, "{% if x %}" * 500 + "{% endif %}" * 500, "{{ " + "-" * 100_000 + "1 }}"])
def test_a_template_that_is_nested_too_deeply_ends_the_start_with_a_sentence(tokenizer: Tokenizer, source: str):
    with pytest.raises(TemplateProblem, match=r"^chat template a\.jinja: it is nested too deeply"):
        Renderer(tokenizer, TemplateSource(source, "a.jinja"), processes=PROCESSES)


@pytest.mark.slow
def test_templates_of_requests_delay_neither_probes_nor_other_requests(folder: Path):
    served = Served(folder, trust_request_chat_template=True)
    ordinary = {"model": MODEL, "messages": HELLO, "max_tokens": 1}
    long = {**ordinary, "messages": [{"role": "user", "content": "x" * 100_000}]}

    async def run() -> None:
        async with served.client() as client:
            bombs = [
                asyncio.ensure_future(
                    client.post(
                        "/v1/chat/completions", json={**ordinary, "chat_template": NESTED + "{{ ns.a == ns.b }}"}
                    )
                )
                for _ in range(NUM_PROCESSES)
            ]
            renderer = served.service.need_renderer()
            while renderer._processes_of_requests.num_idle:  # until all have begun
                await asyncio.sleep(0.01)
            assert (await client.get("/health")).status_code == 200
            assert (await client.post("/v1/chat/completions", json=ordinary)).status_code == 200
            response = await client.post("/v1/chat/completions", json=long)
            assert response.json()["error"]["code"] == "context_length_exceeded"
            assert not any(bomb.done() for bomb in bombs)
            for bomb in bombs:
                bomb.cancel()
            await asyncio.gather(*bombs, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.slow
def test_a_job_whose_caller_has_left_ends_and_its_process_is_used_again():
    """Cancelling must not end the process: clients that connect and leave could keep it from ever being ready."""
    processes = IsolatedProcesses(1)
    chat = Template.compile(processes, "{{ messages[0].content }}")
    running = processes._processes[0]._process

    async def run() -> None:
        abandoned = asyncio.ensure_future(chat.render_async(Rendering(HELLO, {})))
        waiting = asyncio.ensure_future(chat.render_async(Rendering(HELLO, {})))
        await asyncio.sleep(0)  # the first has sent its job, the second waits for the process
        abandoned.cancel()
        waiting.cancel()
        await asyncio.gather(abandoned, waiting, return_exceptions=True)
        assert await chat.render_async(Rendering(HELLO, {})) == "Hello"

    asyncio.run(run())
    assert processes._processes[0]._process is running
    assert processes.num_idle == 1
    processes.close()


@pytest.mark.slow
def test_a_loop_that_ends_leaves_no_process_lent():
    processes = IsolatedProcesses(1)
    chat = Template.compile(processes, "{{ messages[0].content }}")

    async def leave() -> None:
        abandoned = asyncio.ensure_future(chat.render_async(Rendering(HELLO, {})))
        await asyncio.sleep(0)
        assert not abandoned.done()

    asyncio.run(leave())
    gc.collect()
    assert chat.render(Rendering(HELLO, {})) == "Hello"
    processes.close()


# (path, body) of more than 64 KiB
LONG = {
    "completion": ("/v1/completions", {"prompt": "x", "user": "y" * 70_000, "max_tokens": 3}),
    "token ids": ("/v1/completions", {"prompt": [[5] * 400] * 100, "max_tokens": 1}),
    "ids beyond 32 bits": ("/v1/completions", {"prompt": [[5] * 400] * 99 + [[2**70]], "max_tokens": 1}),
    "too long": ("/v1/completions", {"prompt": "x" * 70_000}),
    "unsupported": ("/v1/completions", {"prompt": "x" * 70_000, "response_format": {"type": "xml"}}),
    "wrong type": ("/v1/completions", {"prompt": "x" * 70_000, "n": "2"}),
    "options": (
        "/v1/completions",
        {"prompt": "x", "user": "y" * 70_000, "stop": ["a"], "logit_bias": {"5": 1}, "stream_options": None, "n": 2,
         "response_format": {"type": "text"}, "echo": True},
    ),
    "chat": (
        "/v1/chat/completions",
        {"messages": [*HELLO, {"role": "user", "content": "b", "x": "y" * 70_000}], "chat_template_kwargs": {"k": 1},
         "tools": [{"type": "function", "function": {"name": "f", "description": "d"}}], "tool_choice": "auto"},
    ),
    "continued chat": (
        "/v1/chat/completions",
        {"messages": [*HELLO, {"role": "assistant", "content": "b", "x": "y" * 70_000}], "echo": True,
         "continue_final_message": True, "add_generation_prompt": False},
    ),
    "chat too long": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 70_000}]}),
    "roles": ("/v1/chat/completions", {"messages": [{"role": "", "content": "x" * 70_000}]}),
    "tokenize": ("/tokenize", {"messages": [{**HELLO[0], "x": "y" * 70_000}], "return_token_strs": True}),
    "detokenize": ("/detokenize", {"tokens": [5] * 50_000}),
    "invocations": ("/invocations", {"messages": [{**HELLO[0], "x": "y" * 70_000}]}),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(LONG, *list(LONG)[::4]))
def test_a_long_body_is_answered_as_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """Bodies of more than 64 KiB are read in another process, of which only what is needed comes back."""
    source = TEMPLATE + "{% if tools %}{{ tools | tojson }}{% endif %}{{ k }}{{ messages[-1].x | length }}"
    served = Served(write_tokenizer(tmp_path, template=source), strict_requests=False)
    path, body = LONG[name]
    body = {"model": MODEL, **body}
    answers, prompts = [], []
    for limit in (1, 1 << 30):
        monkeypatch.setattr(endpoint, "LONG_BODY_BYTES", limit)
        monkeypatch.setattr(invocations, "LONG_BODY_BYTES", limit)
        response = served.post(path, body)
        answer = {key: value for key, value in response.json().items() if key not in ("id", "created")}
        answers.append((response.status_code, answer))
        prompts.append([request.prompt_token_ids for request in served.engine.requests])
        served.engine.requests.clear()
    assert answers[0] == answers[1]
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize("copies", [1, 3])
def test_the_server_itself_does_not_read_a_long_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: int):
    """It held the GIL for tens of milliseconds for each of them, and /health had to wait."""
    served = Served(write_tokenizer(tmp_path))
    sizes: list[int] = []
    parse = json.parse
    monkeypatch.setattr(json, "parse", lambda body, *limits: (sizes.append(len(body)), parse(body, *limits))[1])
    served.post("/v1/completions", {"model": MODEL, "prompt": "x" * 1_000_000 * copies})
    served.post("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "x" * 1_000_000}]})
    served.post("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1})
    assert max(sizes) < 1000


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
    assert renderer.template(with_tools=False).is_local == (name in HARMLESS)


@pytest.mark.slow
def test_a_bomb_that_waits_for_a_message_holds_nothing(folder: Path):
    """Once it had rendered a simple message, a template was rendered in the server, and could hold it for minutes."""
    served = Served(folder, chat_template=BOMB)

    def chat(content: str) -> dict[str, Any]:
        return {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 1}

    async def run() -> None:
        async with served.client() as client:
            assert (await client.post("/v1/chat/completions", json=chat("x"))).status_code == 200
            bomb = asyncio.ensure_future(client.post("/v1/chat/completions", json=chat("now")))
            await asyncio.sleep(0)
            while served.service.need_renderer()._processes.num_idle == NUM_PROCESSES:
                await asyncio.sleep(0)
            assert (await client.get("/health")).status_code == 200
            assert not bomb.done()
            assert (await bomb).json()["error"]["message"] == "the chat template exceeded a limit: more than 2 s"

    asyncio.run(run())


@pytest.mark.slow
def test_a_harmless_template_that_is_slow_is_moved_to_the_processes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(template, "LOCAL_S", -1.0)
    slow = Template.compile(PROCESSES, "{% for m in messages %}{{ m.content }}{% endfor %}")
    slow.allow_local()

    async def render() -> str:
        return await slow.render_async(Rendering(HELLO, {}), is_short=True)

    for num in range(template.MAX_SLOW):
        assert slow.is_local, num
        assert asyncio.run(render()) == "Hello"
    assert not slow.is_local


@pytest.mark.slow
def test_in_the_server_values_of_a_template_are_small():
    grows = "{% set ns = namespace(s='xxxx', n=3) %}{% for m in messages %}{% set ns.s = ns.s + ns.s %}{% endfor %}"
    environment = TemplateEnvironment(1000, max_chars=100)
    with pytest.raises(LimitExceeded, match="more than 100 characters"):
        ChatTemplate(environment, grows).render(HELLO * 9, {})
    numbers = "{% set ns = namespace(n=3) %}{% for m in messages %}{% set ns.n = ns.n + ns.n %}{% endfor %}"
    with pytest.raises(LimitExceeded, match="a number of more than 65536 bits"):
        ChatTemplate(environment, numbers).render([{"role": "user", "content": ""}] * 70_000, {})
