"""Clients that leave, engines that stop, shutdowns: each request ends once, and is aborted if its client has left."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from stoker.engine.api import ADAPTER_FAILED, GRAMMAR_FAILED
from stoker.engine.client.engine_client import EngineState
from stoker.server.generation import Generation

from ..fakes import FakeEngine
from .deployment import MODEL, Served, events, on_a_socket

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "ignore_eos": True}


class Pace:
    """Lets an engine generate a number of tokens, counted over all of its requests; then it waits."""

    def __init__(self, tokens: int = 0) -> None:
        self._left = asyncio.Semaphore(tokens)
        self.num_tokens_begun = 0  # generated ones, and one for each request that waits

    def __call__(self) -> Any:
        self.num_tokens_begun += 1
        return self._left.acquire()

    def allow(self, tokens: int) -> None:
        for _ in range(tokens):
            self._left.release()


async def until(condition: Callable[[], object], limit_s: float = 60) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)


def http(port: int, body: dict[str, Any], path: str = "/v1/chat/completions") -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


@pytest.mark.parametrize(
    "fields", [{}, {"stream": True}, {"n": 3}, {"n": 3, "stream": True}, {"use_beam_search": True}]
)
@pytest.mark.parametrize("tokens", [0, 5])
@pytest.mark.parametrize("further", [b"", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"], ids=["", "pipelined"])
@pytest.mark.quick_cases(8)
def test_requests_of_a_client_that_leaves_are_aborted(
    folder: Path, caplog: pytest.LogCaptureFixture, fields: dict[str, Any], tokens: int, further: bytes
):
    """Before the first token and after some, streaming or not, with and without bytes of a further request."""

    async def run() -> FakeEngine:
        pace = Pace(tokens)
        engine = FakeEngine(pace=pace)
        async with on_a_socket(folder, engine) as (port, _):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(http(port, {**CHAT, **fields}) + further)
            await until(lambda: pace.num_tokens_begun == tokens + fields.get("n", 1))
            writer.close()
            await until(lambda: not engine.open_requests)
        return engine

    engine = asyncio.run(run())
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_an_aborted_request_is_counted_as_such(folder: Path):
    async def run() -> Served:
        served = Served(folder, FakeEngine(pace=Pace(2)))
        await call_and_leave(served, {**CHAT, "stream": True})
        return served

    served = asyncio.run(run())
    assert served.metric('stoker_requests_finished_total{finish_reason="abort",model_name="org/tiny"}') == 1
    assert served.metric('stoker_http_requests_total{method="POST",route="/v1/chat/completions",status="200"}') == 1


async def call_and_leave(served: Served, body: dict[str, Any]) -> None:
    messages = iter([{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}])
    answered = asyncio.Event()

    async def receive() -> dict[str, Any]:
        for message in messages:
            return message
        await answered.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        answered.set()

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "raw_path": b"", "query_string": b"",
             "headers": [(b"content-type", b"application/json")], "root_path": ""}  # fmt: skip
    async with asyncio.timeout(60):
        await served.app(scope, receive, send)


async def stream_and(
    folder: Path, engine: FakeEngine, pace: Pace, action: Callable[[Any], object], **options: Any
) -> tuple[list[str], list[httpx.Response]]:
    """Three streams, each of which has generated 2 tokens; then `action`. Returns what the streams receive."""
    async with (
        on_a_socket(folder, engine, **options) as (port, shutdown),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):

        async def one() -> str:
            async with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
                return "".join([piece async for piece in response.aiter_text()])

        tasks = [asyncio.ensure_future(one()) for _ in range(3)]
        await until(lambda: len(engine.open_requests) == 3)
        pace.allow(6)
        await until(lambda: pace.num_tokens_begun == 6 + 3)
        action(shutdown)
        bodies = await asyncio.gather(*tasks)
        later = []
        if not shutdown.requested.is_set():
            later = [await client.post("/v1/chat/completions", json=CHAT), await client.get("/health")]
    return bodies, later


def last_error(body: str) -> str:
    *_, last = events(body)
    return json.loads(last)["error"]["code"]


def test_when_the_engine_stops_each_stream_ends_with_one_error_event(folder: Path):
    async def run() -> Any:
        pace = Pace()
        engine = FakeEngine(pace=pace)
        return await stream_and(folder, engine, pace, lambda _: engine.die())

    bodies, (refused, health) = asyncio.run(run())
    for body in bodies:
        assert last_error(body) == "engine_restarting"
        assert body.count('"error"') == 1
        assert "[DONE]" not in body
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_restarting")
    assert health.status_code == 503


@pytest.mark.effect("server.drain_timeout")
def test_at_the_drain_deadline_each_stream_ends_with_one_error_event(folder: Path):
    async def run() -> Any:
        pace = Pace()
        return await stream_and(folder, FakeEngine(pace=pace), pace, lambda shutdown: shutdown.request(),
                                drain_timeout=0.05)  # fmt: skip

    bodies, _ = asyncio.run(run())
    assert [last_error(body) for body in bodies] == ["server_shutting_down"] * 3


@pytest.mark.effect("server.drain_timeout")
def test_a_stream_that_ends_during_the_drain_is_complete(folder: Path):
    async def run() -> Any:
        pace = Pace()

        def stop(shutdown: Any) -> None:
            shutdown.request()
            pace.allow(10_000)

        return await stream_and(folder, FakeEngine(pace=pace), pace, stop, drain_timeout=3600)

    bodies, _ = asyncio.run(run())
    assert [body[-14:] for body in bodies] == ["data: [DONE]\n\n"] * 3


def test_a_request_that_runs_at_the_deadline_gets_a_503(folder: Path):
    async def run() -> httpx.Response:
        engine = FakeEngine(pace=Pace())
        async with (
            on_a_socket(folder, engine, drain_timeout=0.05) as (port, shutdown),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            task = asyncio.ensure_future(client.post("/v1/chat/completions", json=CHAT))
            await until(lambda: engine.open_requests)
            shutdown.request()
            return await task

    response = asyncio.run(run())
    assert (response.status_code, response.json()["error"]["code"]) == (503, "server_shutting_down")


def test_an_engine_that_will_not_be_started_again_ends_the_server_with_code_1(folder: Path):
    from stoker.server.http.address import bind
    from stoker.server.run import load_text, run_server

    from .deployment import PROCESSES, resolved

    async def run() -> int:
        engine, settings, sockets = FakeEngine(pace=Pace()), resolved(folder), bind("127.0.0.1", 0)
        server = run_server(settings, engine, load_text(settings, PROCESSES), sockets, exit_hard=False)
        task = asyncio.ensure_future(server)
        engine.die(EngineState.DEAD)
        async with asyncio.timeout(60):
            return await task

    assert asyncio.run(run()) == 1


@pytest.mark.parametrize(
    ("problem", "status", "code"),
    [
        ("out of memory", 500, "engine_error"),
        (GRAMMAR_FAILED + "too many rows", 400, "grammar_too_complex"),
        (ADAPTER_FAILED + "its files are gone", 500, "adapter_unreadable"),
    ],
)
def test_a_failed_step_is_an_error_of_its_request(folder: Path, problem: str, status: int, code: str):
    from stoker.engine.api import EngineOutput, FinishReason

    class Failing(FakeEngine):
        async def _outputs(self, request: Any, died: Any) -> AsyncIterator[EngineOutput]:
            yield EngineOutput(request_id="", token_ids=[], finish_reason=FinishReason.ERROR, error=problem)

    served = Served(folder, Failing())
    response = served.chat()
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.json()["error"]["message"] == problem
    assert served.metric('stoker_requests_finished_total{finish_reason="error",model_name="org/tiny"}') == 1


def test_a_request_that_the_engine_refuses_is_a_400(folder: Path):
    from stoker.engine.api import EngineOutput, InvalidRequest

    class Refusing(FakeEngine):
        async def _outputs(self, request: Any, died: Any) -> AsyncIterator[EngineOutput]:
            raise InvalidRequest("does not fit", param="prompt", code="context_length_exceeded")
            yield

    for stream in (False, True):
        response = Served(folder, Refusing()).complete(stream=stream)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize("code", ["adapter_changed", "adapter_memory", "adapter_unreadable"])
def test_an_adapter_that_was_loaded_and_is_gone_is_no_fault_of_the_request(folder: Path, code: str):
    from stoker.engine.api import EngineOutput, InvalidRequest

    class Refusing(FakeEngine):
        async def _outputs(self, request: Any, died: Any) -> AsyncIterator[EngineOutput]:
            raise InvalidRequest("adapter `sql` cannot be read", param="model", code=code)
            yield

    for stream in (False, True):
        response = Served(folder, Refusing()).complete(stream=stream)
        assert (response.status_code, response.json()["error"]["code"]) == (500, code)


async def raw(port: int, data: bytes) -> bytes:
    """What the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer


def head(*lines: str, then: bytes = b"") -> bytes:
    return "\r\n".join([*lines, "host: localhost", "", ""]).encode() + then


JSON = "content-type: application/json"
SECOND = b"0\r\n\r\n" + head("GET /version HTTP/1.1")
BROKEN = {
    "smuggling": (
        head("POST /tokenize HTTP/1.1", "content-length: 3", "transfer-encoding: chunked", then=SECOND),
        400, b"bad_request",
    ),
    "headers": (head("GET /version HTTP/1.1", "x-big: " + "x" * 60_000), 431, b"headers_too_large"),
    "stuck body": (head("POST /tokenize HTTP/1.1", JSON, "content-length: 5", then=b"{"), 408, b"request_timeout"),
    "too large": (head("POST /tokenize HTTP/1.1", JSON, "content-length: 99999999"), 413, b"request_too_large"),
    "garbage": (b"garbage\r\n\r\n", 400, b""),
    "two lengths": (head("GET /version HTTP/1.1", "content-length: 1", "content-length: 2"), 400, b""),
    "absolute form": (head("GET http://evil.example/v1/models HTTP/1.1", "connection: close"), 404, b"not_found"),
}  # fmt: skip


@pytest.mark.parametrize(("request_bytes", "status", "code"), BROKEN.values(), ids=BROKEN)
def test_an_invalid_request_gets_one_response_and_the_connection_is_closed(
    folder: Path, request_bytes: bytes, status: int, code: bytes
):
    async def run() -> bytes:
        async with on_a_socket(folder, FakeEngine(), body_idle_timeout=0.1) as (port, _):
            return await raw(port, request_bytes)

    answer = asyncio.run(run())
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert code in answer


def test_a_client_that_sends_a_large_body_receives_the_refusal(folder: Path):
    async def run() -> int:
        async with (
            on_a_socket(folder, FakeEngine(), max_request_bytes=10_000) as (port, _),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
        ):
            headers = {"content-type": "application/json"}
            response = await client.post("/tokenize", content=b" " * 8_000_000, headers=headers)
            return response.status_code

    assert asyncio.run(run()) == 413


def test_the_openai_client_can_use_the_api(folder: Path):
    async def run() -> None:
        engine = FakeEngine(max_queued=4)
        async with on_a_socket(folder, engine, api_key=["k"], enable_prompt_tokens_details=True) as (port, _):
            url = f"http://127.0.0.1:{port}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
                assert [model.id async for model in client.models.list()] == [MODEL, "alias"]
                assert (await client.models.retrieve(MODEL)).id == MODEL
                messages: Any = [{"role": "user", "content": "Hello"}]
                whole = await client.chat.completions.create(
                    model=MODEL, messages=messages, n=2, seed=1, logprobs=True, top_logprobs=2, max_tokens=8
                )
                assert [choice.index for choice in whole.choices] == [0, 1]
                assert whole.choices[0].logprobs.content[0].top_logprobs[1].logprob == -1.5
                assert whole.usage.prompt_tokens_details.cached_tokens == 0
                text, usage = ["", ""], None
                async for chunk in await client.chat.completions.create(
                    model=MODEL, messages=messages, n=2, seed=1, max_tokens=8, stream=True,
                    stream_options={"include_usage": True},
                ):  # fmt: skip
                    for choice in chunk.choices:
                        text[choice.index] += choice.delta.content or ""
                    usage = chunk.usage
                assert text == [choice.message.content for choice in whole.choices]
                assert usage == whole.usage
                async with client.chat.completions.stream(
                    model=MODEL, messages=messages, extra_body={"stop_token_ids": list(range(400)), "min_tokens": 3}
                ) as stream:
                    final = await stream.get_final_completion()
                assert final.choices[0].finish_reason == "stop"
                done = await client.completions.create(model=MODEL, prompt="Hello", max_tokens=4, echo=True, logprobs=1)
                assert done.choices[0].text.startswith("Hello")
                pieces = await client.completions.create(model=MODEL, prompt="Hello", max_tokens=4, stream=True)
                assert "".join([piece.choices[0].text async for piece in pieces]) == done.choices[0].text[5:]
                with pytest.raises(openai.NotFoundError) as missing:
                    await client.chat.completions.create(model="gpt-x", messages=messages)
                assert missing.value.code == "model_not_found"
                with pytest.raises(openai.BadRequestError) as wrong:
                    await client.chat.completions.create(model=MODEL, messages=messages, temperature=9)
                assert wrong.value.param == "temperature"
                with pytest.raises(openai.AuthenticationError):
                    await client.with_options(api_key="x").models.list()
                engine.die()
                with pytest.raises(openai.InternalServerError):
                    await client.chat.completions.create(model=MODEL, messages=messages)

    asyncio.run(run())


def test_a_client_that_leaves_as_its_request_arrives_leaves_no_task_behind(folder: Path):
    """hypercorn suppressed a cancellation that arrived while it stopped its idle timer: the tasks of the connection
    were never ended, which under load took some 70 KB of memory per second."""

    async def run() -> None:
        async with on_a_socket(folder, FakeEngine()) as (port, _):
            before = len(asyncio.all_tasks())
            for turns in range(60):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(http(port, {**CHAT, "stream": True}))
                for _ in range(turns % 20):  # iterations of the event loop
                    await asyncio.sleep(0)
                writer.close()
                await writer.wait_closed()
            await until(lambda: len(asyncio.all_tasks()) == before)

    asyncio.run(run())


@pytest.mark.parametrize("is_left", [False, True])
def test_a_request_that_was_refused_or_left_is_freed_without_the_garbage_collector(
    folder: Path, is_left: bool, monkeypatch: pytest.MonkeyPatch
):
    """Errors referred to frames, and these to the errors: a pass of the garbage collector over thousands of sequences
    stopped all requests for half a second."""
    made: list[weakref.ref[Generation]] = []
    begin = Generation.__init__

    def noted(self: Generation, *given: Any, **named: Any) -> None:
        made.append(weakref.ref(self))
        begin(self, *given, **named)

    monkeypatch.setattr(Generation, "__init__", noted)

    async def run() -> None:
        engine = FakeEngine(pace=Pace(2), max_queued=2)
        async with on_a_socket(folder, engine) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(http(port, {**CHAT, "n": 2 if is_left else 3}))
            if is_left:
                await until(lambda: len(engine.open_requests) == 2)
            else:
                assert b" 429 " in await reader.readline()
            writer.close()
            await until(lambda: made[0]() is None)

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
