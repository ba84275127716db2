from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from stoker.config.checkpoint.chat_templates import TemplateSource
from stoker.engine.api import InvalidRequest
from stoker.server.text import template_process
from stoker.server.text.chat_template import CannotCompile, ChatTemplate, LimitExceeded, TemplateEnvironment
from stoker.server.text.renderer import Renderer, TemplateProblem
from stoker.server.text.template_process import NUM_PROCESSES, IsolatedTemplate, TemplateProcesses
from stoker.server.text.tokenizer import Tokenizer

from ..deployment import MODEL, PROCESSES, Served

HELLO = [{"role": "user", "content": "Hello"}]
HASTY = TemplateProcesses(time_limit_s=0.2)
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
def test_a_template_is_ended_at_its_limits_also_within_one_operation(tokenizer: Tokenizer, source: str):
    """Before, it held the interpreter for minutes, and /health with it."""
    renderer = Renderer(tokenizer, TemplateSource(source, "a.jinja"), processes=HASTY)
    assert not renderer.is_local(with_tools=False)
    message = f"the chat template exceeded a limit: {BOMBS[source]}"
    assert renderer.problem() == f"a.jinja: {message}"
    with pytest.raises(LimitExceeded) as caught:
        renderer.render(HELLO)
    assert str(caught.value) == message
    assert IsolatedTemplate(HASTY, "{{ messages[0].content }}").render(HELLO, {}) == "Hello"


def test_a_template_that_exceeds_a_limit_here_is_isolated_from_then_on(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
):
    renderer = Renderer(tokenizer, TemplateSource("{{ messages[0].content }}", "a.jinja"), processes=PROCESSES)

    def slow(*_: Any, **__: Any) -> str:
        raise LimitExceeded("more than 2 s")

    monkeypatch.setattr(ChatTemplate, "render", slow)
    assert renderer.is_local(with_tools=False)
    with pytest.raises(LimitExceeded):
        renderer.render(HELLO)
    assert not renderer.is_local(with_tools=False)
    assert renderer.render(HELLO) == "Hello"


def test_values_arrive_in_the_process_as_they_are():
    values = {"big": 10**40, "negative": -(2**70), "float": 1.5, "none": None, "text": "ü😀\u2028", "list": [[], {}]}
    template = "{{ v.big + 1 }} {{ v.negative }} {{ v.float }} {{ v.none }} {{ v.text }} {{ v.list }}"
    rendered = IsolatedTemplate(PROCESSES, template).render(HELLO, {"v": values})
    assert rendered == ChatTemplate(TemplateEnvironment(1000), template).render(HELLO, {"v": values})


def test_errors_are_those_of_a_template_in_this_process():
    with pytest.raises(CannotCompile) as failed:
        IsolatedTemplate(PROCESSES, "{{ x }}\n{% if %}")
    assert failed.value.line == 2
    broken = [{"role": "user", "tool_calls": [{"function": {"arguments": "{"}}]}]
    with pytest.raises(InvalidRequest) as caught:
        IsolatedTemplate(PROCESSES, "{{ messages }}").render(broken, {})
    assert caught.value.param == "messages[0].tool_calls[0].function.arguments"


def test_a_process_that_has_ended_is_started_again():
    processes = TemplateProcesses()
    template = IsolatedTemplate(processes, "{{ messages[0].content }}")
    for number in (signal.SIGKILL, signal.SIGSEGV):
        running = processes._processes[0]._process
        assert running is not None
        running.send_signal(number)
        running.wait()
        assert template.render(HELLO, {}) == "Hello"
    processes.close()
    assert processes._processes[0]._process is None


def test_a_process_that_does_not_start_is_no_fault_of_the_template(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(template_process, "_MODULE", "stoker.missing")
    with pytest.raises(OSError, match=r"did not start: its process ended \(exit code 1\)"):
        IsolatedTemplate(TemplateProcesses(), "x")


def test_the_process_gets_no_secrets_and_ends_with_its_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("API_KEY", "secret")
    processes = TemplateProcesses()
    IsolatedTemplate(processes, "x")
    running = processes._processes[0]._process
    assert running is not None
    assert running.stdin is not None
    environment = Path(f"/proc/{running.pid}/environ")
    if environment.exists():
        assert b"secret" not in environment.read_bytes()
    running.stdin.close()  # as when the server ends
    assert running.wait(60) == 0
    processes.close()


DEEP = "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"


@pytest.mark.parametrize("source", [DEEP, "{% if x %}" * 500 + "{% endif %}" * 500, "{{ " + "-" * 100_000 + "1 }}"])
def test_a_template_that_is_nested_too_deeply_ends_the_start_with_a_sentence(tokenizer: Tokenizer, source: str):
    with pytest.raises(TemplateProblem, match=r"^chat template a\.jinja: it is nested too deeply"):
        Renderer(tokenizer, TemplateSource(source, "a.jinja"), processes=PROCESSES)


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
            while not renderer._processes_of_requests._idle.empty():  # until all have begun
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
