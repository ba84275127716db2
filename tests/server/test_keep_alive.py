"""Comments in a stream that waits for its next event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from stoker.server.http.keep_alive import COMMENT, kept_alive
from stoker.server.protocol.errors import bad_request

from .. import virtual_time
from ..fakes import FakeEngine
from .deployment import MODEL, Served
from .dialects import named_events


async def paced(*pauses_s: float, ended: list[bool]) -> AsyncGenerator[bytes, None]:
    try:
        for pause_s in pauses_s:
            await asyncio.sleep(pause_s)
            yield b"frame"
    finally:
        ended.append(True)


def test_a_comment_follows_each_interval_without_a_frame():
    async def run() -> list[bytes]:
        frames = paced(25, 0, 9, 10.5, ended=[])
        async with aclosing(frames), aclosing(kept_alive(frames, 10)) as sent:
            return [frame async for frame in sent]

    assert virtual_time.run(run()) == [COMMENT, COMMENT, b"frame", b"frame", b"frame", COMMENT, b"frame"]


def test_frames_are_closed_when_their_reader_stops_during_an_interval():
    """Else a client that leaves while its request waits would leave the request running."""
    ended: list[bool] = []

    async def run() -> None:
        frames = paced(1000, ended=ended)
        async with aclosing(frames), aclosing(kept_alive(frames, 10)) as sent:
            assert await anext(sent) == COMMENT

    virtual_time.run(run())
    assert ended == [True]


@pytest.mark.effect("server.sse_keep_alive_interval")
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_that_waits_in_the_queue_gets_comments(folder: Path, path: str):
    """The first token takes 35 seconds, and the interval is 10."""
    body = {"model": MODEL, "max_tokens": 2, "stream": True, "ignore_eos": True}
    body |= {"prompt": "x"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "x"}]}

    async def run(**options: object) -> str:
        waits = iter([35.0])
        served = Served(folder, FakeEngine(pace=lambda: asyncio.sleep(next(waits, 0.0))), **options)
        async with served.client() as client:
            return (await client.post(path, json=body, timeout=None)).text

    kept = virtual_time.run(run(sse_keep_alive_interval=10.0))
    plain = virtual_time.run(run())
    assert kept.startswith(COMMENT.decode() * 3 + "data: ")
    assert kept.count(":\x20keep-alive") == 3
    assert plain.startswith("data: ")
    assert len(kept.replace(COMMENT.decode(), "")) == len(plain)


def test_an_error_after_the_first_comment_is_an_event_of_the_stream(folder: Path):
    async def run() -> tuple[int, str]:
        engine = FakeEngine(pace=lambda: asyncio.sleep(15))
        served = Served(folder, engine, sse_keep_alive_interval=10.0)
        async with served.client() as client:
            body = {"model": MODEL, "prompt": "x", "stream": True}
            answer = asyncio.ensure_future(client.post("/v1/completions", json=body, timeout=None))
            await asyncio.sleep(12)
            engine.die()
            done = await answer
        return done.status_code, done.text

    status, text = virtual_time.run(run())
    assert (status, text.startswith(COMMENT.decode())) == (200, True)
    assert '"code":"engine_' in text
    assert "[DONE]" not in text


@pytest.mark.parametrize("dies_in", ["preparation", "queue"])
def test_a_response_that_fails_after_a_comment_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch, dies_in: str):
    """The stream broke off before the request was prepared, and began with `response.failed` after that."""
    engine = FakeEngine()

    async def dies() -> None:
        await asyncio.sleep(15)
        engine.die()

    async def is_refused(*arguments: object, **options: object) -> None:
        await asyncio.sleep(15)
        raise bad_request("no", param="input")

    engine._pace = dies
    if dies_in == "preparation":
        monkeypatch.setattr("stoker.server.routes.responding.Answering.start", is_refused)

    async def run() -> str:
        served = Served(folder, engine, sse_keep_alive_interval=10.0)
        async with served.client() as client:
            return (await client.post("/v1/responses", json={"input": "x", "stream": True})).text

    comment, rest = virtual_time.run(run()).split("\n\n", 1)
    assert comment.startswith(":")
    kinds = [event["type"] for event in named_events(rest)]
    begun = ["response.created", "response.in_progress", "response.failed"]
    assert kinds == (["error"] if dies_in == "preparation" else begun)
