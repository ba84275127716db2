"""The request log: prompts and outputs are logged only as far as the deployment enables it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..fakes import FakeEngine
from .deployment import Served

Saying = Callable[..., Served]
LOGGED = {"enable_log_requests": True, "enable_log_outputs": True}


def logged_fields(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records if record.getMessage() == message]


@pytest.fixture(autouse=True)
def _at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.mark.effect("server.enable_log_requests", "server.max_log_len")
@pytest.mark.parametrize(
    ("max_log_len", "chat", "text", "ids"),
    [
        (None, "<|im_start|>user\ncanary<|im_end|>\n<|im_start|>assistant\n", "canary", [5, 6, 7]),
        (2, "<|", "ca", [5, 6]),
    ],
)
@pytest.mark.slow
def test_a_prompt_is_logged_up_to_its_length(
    folder: Path, caplog: pytest.LogCaptureFixture, max_log_len: int | None, chat: str, text: str, ids: list[int]
):
    served = Served(folder, enable_log_requests=True, max_log_len=max_log_len)
    served.chat("canary", max_tokens=1, temperature=0.25)
    served.complete("canary", max_tokens=1)
    served.complete([5, 6, 7], max_tokens=1)
    served.complete(["canary", "canary"], max_tokens=1)
    logged = logged_fields(caplog, "request arrived")
    assert [one["prompt"] for one in logged] == [chat, text, ids, [text, text]]
    assert logged[0]["temperature"] == 0.25
    assert logged[0]["id"] == served.engine.requests[0].request_id


@pytest.mark.effect("server.enable_log_requests", "server.max_log_len", "server.enable_log_outputs")
def test_no_text_is_logged_by_default_or_with_length_0(saying: Saying, caplog: pytest.LogCaptureFixture):
    for options, num_arrivals in (({}, 0), ({"max_log_len": 0, **LOGGED}, 1)):
        caplog.clear()
        saying("canary", **options).chat("canary", stop="canary-stop")
        assert len(logged_fields(caplog, "request arrived")) == num_arrivals
        assert logged_fields(caplog, "POST /v1/chat/completions")
        assert "canary" not in str([(record.getMessage(), vars(record)) for record in caplog.records])


@pytest.mark.effect("server.enable_log_outputs", "server.max_log_len")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("max_log_len", "shown"), [(None, "Hello, world!"), (4, "Hell")])
def test_an_output_is_logged_with_the_option(
    saying: Saying, caplog: pytest.LogCaptureFixture, stream: bool, max_log_len: int | None, shown: str
):
    served = saying("Hello, world!", max_log_len=max_log_len, **LOGGED)
    served.chat(stream=stream, n=2)
    logged = logged_fields(caplog, "request answered")
    name = logged_fields(caplog, "request arrived")[0]["id"]
    assert logged == [{"id": name, "index": index, "finish": "stop", "output": shown} for index in (0, 1)]
    caplog.clear()
    saying("Hello, world!", enable_log_requests=True).chat(stream=stream)
    assert logged_fields(caplog, "request answered") == []


def test_without_a_tokenizer_ids_are_logged(folder: Path, caplog: pytest.LogCaptureFixture):
    engine = FakeEngine(script=lambda _: [7, 8, 9])
    served = Served(folder, engine, model={"skip_tokenizer_init": True, "tokenizer": ""}, max_log_len=2, **LOGGED)
    served.complete([5, 6, 7])
    assert logged_fields(caplog, "request arrived")[0]["prompt"] == [5, 6]
    assert logged_fields(caplog, "request answered")[0]["output"] == [7, 8]


@pytest.mark.effect("server.log_error_stack")
@pytest.mark.parametrize("has_stack", [False, True])
def test_error_responses_are_logged_with_a_traceback_with_the_option(
    folder: Path, caplog: pytest.LogCaptureFixture, has_stack: bool
):
    served = Served(folder, FakeEngine(max_queued=0), log_error_stack=has_stack)
    answers = [served.chat(temperature="hot"), served.get("/nowhere"), served.chat(), served.complete([5] * 512)]
    traced = [record for record in caplog.records if record.exc_info]
    codes = [answer.json()["error"]["code"] for answer in answers]
    assert codes == ["invalid_type", "not_found", "queue_full", "context_length_exceeded"]
    assert [record.fields["code"] for record in traced] == codes * has_stack


@pytest.mark.effect("server.log_error_stack")
def test_an_error_within_a_stream_is_logged_with_a_traceback_too(folder: Path, caplog: pytest.LogCaptureFixture):
    engine = FakeEngine()
    served = Served(folder, engine, log_error_stack=True)
    engine._pace = lambda: stop_at_the_second_token(engine)
    assert '"engine_restarting"' in served.chat(stream=True, ignore_eos=True).text
    assert [record.fields["code"] for record in caplog.records if record.exc_info] == ["engine_restarting"]


async def stop_at_the_second_token(engine: FakeEngine) -> None:
    engine.steps = getattr(engine, "steps", 0) + 1
    if engine.steps == 2:
        engine.die()
