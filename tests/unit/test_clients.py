"""tools.clients: how results are judged, what the page shows, and that record, page and pinned versions agree."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from tools.clients import record, worker
from tools.clients.cases import CASES
from tools.clients.clients import CLIENTS
from tools.clients.environments import SetupError, prepare
from tools.clients.judging import Seen, Verdict, judge
from tools.clients.run import Worker, WorkerFailed

BY_NAME = {case.name: case for case in CASES}
ADAPTERS = Path(worker.__file__).parent / "adapters"
ERRORS = {"key": "openai.AuthenticationError", "queue": "openai.RateLimitError", "timeout": "openai.APITimeoutError"}
CHAT = {
    "choices": [{"message": {"content": "a b"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}
SAME = {"text": "a b", "finish_reason": "stop", "usage": [3, 2]}


def judged(name: str, returned: Any = None, **seen: Any) -> Verdict:
    return judge(BY_NAME[name], Seen(returned, **seen), ERRORS)


def raised(kind: str, message: str, code: str = "", text: str | None = None) -> dict[str, Any]:
    server = {"message": message, "code": code} if code else None
    return {"class": kind, "classes": [kind, "Exception"], "message": text or message, "status": 400, "server": server}


def adapter_functions(adapter: str) -> set[str]:
    python = ADAPTERS / f"{adapter}.py"
    if python.exists():
        body = ast.parse(python.read_text()).body
        return {
            each.name
            for each in body
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not each.name.startswith("_")
        }
    text = (ADAPTERS / f"{adapter}.mjs").read_text()
    return set(re.findall(r"^export (?:async function|const) (\w+)", text, re.MULTILINE))


def test_an_answer_works_if_it_equals_the_one_over_plain_http():
    assert judged("chat", SAME, expected=CHAT) == Verdict("works")
    assert judged("chat", {"text": "a b"}, expected=CHAT) == Verdict("works")  # a client that shows no usage
    assert judged("chat", {**SAME, "text": "a"}, expected=CHAT).note == "text is 'a', over plain HTTP 'a b'"
    assert judged("chat", {**SAME, "finish_reason": "length"}, expected=CHAT).result == "differs"
    own_prompt = judged("chat", {**SAME, "text": "c", "usage": [10, 2]}, expected=CHAT)
    assert own_prompt == Verdict("works", "the client sends a prompt of its own: +7 tokens")


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("models", ["builtin:tiny"], []),
        ("history", {"text": "a"}, {"text": ""}),
        ("stream", ["a", " b"], ["a b"]),
        ("stream", ["a", " b"], ["a", "b"]),
        ("stream_usage", [3, 2], [3, 1]),
        ("logprobs", [["a", -1.0, 2], [" b", -0.0, 2]], [["a", -1.0, 2]]),
        ("logprobs", [["a", -1.0, 2], [" b", 0.0, 2]], [["a", -1.0, 2], [" b", 0.5, 2]]),
        ("logprobs", [["a", -1.0, 2], [" b", 0.0, 2]], [["a", -1.0, 2], [" b", 0.0, 0]]),
        ("several", ["a", "b"], ["a"]),
        ("tools", {"text": None, "calls": ["get_weather"]}, {"text": "<tool_call>", "calls": []}),
        ("tools", {"text": None, "calls": ["get_weather"]}, {"text": "rain", "calls": []}),
        ("structured", {"name": "Anna", "age": 7}, {"name": "Anna"}),
        ("structured", {"name": "Anna", "age": 7}, "Anna"),
        ("embeddings", 256, 0),
    ],
)
def test_each_case_knows_a_right_and_a_wrong_result(name: str, right: Any, wrong: Any):
    assert judged(name, right, expected=CHAT) == Verdict("works")
    verdict = judged(name, wrong, expected=CHAT)
    assert verdict.result == "differs"
    assert verdict.note


def test_an_unsupported_field_or_route_is_refused_with_the_message_of_the_server():
    error = raised("openai.BadRequestError", "`x` is not supported here", "unsupported_parameter", "400: `x` is ...")
    assert judged("structured", raised=error) == Verdict(
        "refused", "`x` is not supported here", "openai.BadRequestError"
    )
    assert judged("responses", raised=raised("NotFoundError", "no route", "not_found")).result == "refused"


def test_any_other_error_differs_and_its_note_is_one_line():
    verdict = judged("chat", raised=raised("KeyError", "a\n  b " + "c" * 1000))
    assert verdict.result == "differs"
    assert verdict.note.startswith("KeyError: a b ccc")
    assert len(verdict.note) < 400
    assert judged("chat", raised=raised("openai.BadRequestError", "too big", "invalid_value")).result == "differs"


def test_an_error_must_be_of_the_documented_class_and_show_the_message_of_the_server():
    right = raised("openai.AuthenticationError", "unknown key", "invalid_api_key", "Error code: 401 - unknown key")
    assert judged("error_key", raised=right) == Verdict("works", "", "openai.AuthenticationError")
    other = raised("litellm.BadRequestError", "unknown key", "invalid_api_key")
    assert judged("error_key", raised=other).note.startswith("litellm.BadRequestError instead of openai.Authentication")
    hidden = raised("openai.AuthenticationError", "unknown key", "invalid_api_key", "something failed")
    assert "without the server's message" in judged("error_key", raised=hidden).note
    unrelated = raised("openai.AuthenticationError", "unknown key", "queue_full")
    assert judged("error_key", raised=unrelated).note == "openai.AuthenticationError for another reason: unknown key"
    assert judged("error_key", {"text": "a"}).note == "no error, but {'text': 'a'}"


def test_a_subclass_of_the_documented_class_is_right():
    error = raised("own.RateLimit", "the queue is full", "queue_full")
    error["classes"] = ["own.RateLimit", "openai.RateLimitError"]
    assert judged("error_queue", raised=error).result == "works"


def test_a_client_that_leaves_must_end_its_request_at_the_server():
    assert judged("cancel", ended={"abort": 1}).result == "works"
    kept = judged("cancel", ended={"length": 1})
    assert kept.note == "the client keeps the connection open, and the server generates to the end"
    timeout = raised("openai.APITimeoutError", "Request timed out.")
    assert judged("error_timeout", raised=timeout, ended={"abort": 32}).result == "works"
    assert judged("error_timeout", raised=timeout, ended={"length": 32}).result == "differs"


def test_a_retry_must_succeed_and_wait():
    assert judged("retry", SAME, statuses={"429": 1, "200": 1}, seconds=1.1).result == "works"
    early = judged("retry", SAME, statuses={"429": 2, "200": 1}, seconds=0.6)
    assert early.note == "the client does not wait for `Retry-After`"
    limited = judged("retry", raised=raised("openai.RateLimitError", "the queue is full", "queue_full"))
    assert limited.result == "differs"


class Wrapped(Exception):
    status_code = 400

    def __init__(self) -> None:
        super().__init__("inner")
        self.body = {"error": {"message": "too long", "code": "context_length_exceeded"}}


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Runs in a thread, as in a worker."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_an_error_is_described_with_its_classes_and_with_what_its_causes_keep(loop: asyncio.AbstractEventLoop):
    def fails(task: Any) -> None:
        try:
            raise Wrapped
        except Wrapped as inner:
            raise openai.OpenAIError("outer") from inner

    found = worker.answer(SimpleNamespace(chat=fails), "chat", {}, loop)["raised"]
    assert found["class"] == "openai.OpenAIError"
    assert found["classes"] == ["openai.OpenAIError", "Exception", "BaseException", "object"]
    assert (found["message"], found["status"]) == ("outer", 400)
    assert found["server"] == {"message": "too long", "code": "context_length_exceeded"}


def test_the_body_of_an_error_is_also_found_in_its_message():
    body = {"message": "no route {}", "code": "not_found"}
    error = ValueError(f"OpenAIException - {json.dumps({'error': body})} at once")
    assert worker.described(error)["server"] == body
    assert worker.described(ValueError('{"error": cut'))["server"] is None


def test_an_end_token_in_logprobs_works_with_a_note():
    tokens = [["a", -1.0, 2], [" b", 0.0, 2], ["<|im_end|>", -0.5, 2]]
    verdict = judged("logprobs", tokens, expected=CHAT)
    note = "the last entry is the end token `<|im_end|>`, which is not in the text, as in vLLM"
    assert verdict == Verdict("works", note)


def test_a_worker_runs_functions_and_coroutines_in_one_loop_and_reports_absent_ones(loop: asyncio.AbstractEventLoop):
    async def async_chat(task: Any) -> int:
        return id(asyncio.get_running_loop())

    adapter = SimpleNamespace(chat=lambda task: task.model, async_chat=async_chat)
    assert worker.answer(adapter, "chat", {"model": "m"}, loop) == {"returned": "m"}
    assert [worker.answer(adapter, "async_chat", {}, loop) for _ in range(2)] == [{"returned": id(loop)}] * 2
    assert worker.answer(adapter, "raw", {}, loop) == {"absent": True}


def test_a_process_that_ends_is_a_failure_of_the_case():
    process = Worker([sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit(3)"], {})
    with pytest.raises(WorkerFailed, match="ended with code 3"):
        process.ask("chat", {})
    process.close()


def test_an_installation_that_fails_is_reported_in_one_line_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    failed = SimpleNamespace(returncode=1, stdout="", stderr="a warning\nERROR: no")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: failed)
    for _ in range(2):
        with pytest.raises(SetupError, match=r"^ERROR: no$"):
            prepare(CLIENTS["openai"], tmp_path)
    assert not (tmp_path / "openai_python" / "installed").exists()


def test_every_client_has_an_adapter_whose_functions_are_cases_and_an_error_class_for_each_kind():
    calls = {case.call or case.name for case in CASES}
    kinds = {case.expects for case in CASES if case.expects}
    for client in CLIENTS.values():
        functions = adapter_functions(client.adapter)
        assert "chat" in functions
        assert functions - calls <= {"get_weather"}, client.name
        assert client.errors.keys() == kinds, client.name


def test_versions_are_pinned():
    for client in CLIENTS.values():
        for package in client.packages:
            assert re.fullmatch(r"[\w@/.-]+(\[\w+\])?(==|@)\d[\w.]*", package), package


def test_the_page_numbers_each_note_once_and_leaves_cells_of_absent_functions_empty():
    refused = Verdict("refused", "`<x>` is <not> supported", "openai.BadRequestError")
    found = {"chat": Verdict("works"), "tools": refused, "forced_tool": refused, "raw": Verdict("absent")}
    run = {"date": "2026-01-02", "stoker": "0.1.0", "runtime": "Python 3.11.0"}
    text = record.page({"openai": record.entry(CLIENTS["openai"], run, found)})
    assert "| chat | works |" in text
    assert "| chat, raw response |  |" in text
    assert text.count("refused [1](#note-1)") == 2
    assert '1. <a id="note-1"></a>`<x>` is &lt;not> supported' in text
    assert "2. <a" not in text


def test_the_record_has_every_client_with_the_pinned_versions_and_every_case():
    results = record.read()
    assert list(results) == list(CLIENTS), "run `make clients`"
    for name, found in results.items():
        assert found["packages"] == list(CLIENTS[name].packages), f"run `make clients ARGS='--only \"{name}\"'`"
        assert list(found["verdicts"]) == [case.name for case in CASES], f"run `make clients ARGS='--only \"{name}\"'`"


def test_the_page_is_the_one_of_the_record():
    assert record.PAGE.read_text("utf-8") == record.page(record.read()), "run `python -m tools.clients --page`"


def test_the_error_classes_of_the_openai_library_exist():
    for name in CLIENTS["openai"].errors.values():
        assert issubclass(getattr(openai, name.removeprefix("openai.")), openai.OpenAIError)
