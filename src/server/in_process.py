"""Requests to an ASGI app in this process, whose responses are read while they arrive or as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from .endpoint import Message

App = Callable[..., Awaitable[None]]
_NOT_PASSED_ON = frozenset({"content-length", "content-type", "transfer-encoding", "content-encoding", "host"})


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[bytes, bytes]
    body: bytes


@dataclass
class Streamed:
    """A response whose head has arrived. `pieces` holds parts of its body, and None after the last one."""

    status: int
    headers: dict[bytes, bytes]
    pieces: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)

    async def parts(self) -> AsyncGenerator[bytes, None]:
        while (piece := await self.pieces.get()) is not None:
            yield piece

    async def whole(self) -> bytes:
        return b"".join([piece async for piece in self.parts()])


@asynccontextmanager
async def request(
    app: App,
    path: str,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    further: Mapping[str, Any] | None = None,
) -> AsyncGenerator[Streamed, None]:
    """Send a POST request with JSON. The end of the block aborts it, unless it has ended.

    further: entries of the scope, which no client can set. Raises what the app raises, and RuntimeError if it ends
    without a response.
    """
    passed = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in (headers or {}).items()
        if name.lower() not in _NOT_PASSED_ON
    ]
    scope = {**_scope(path, body, passed), **(further or {})}
    head: asyncio.Future[Streamed] = asyncio.get_running_loop().create_future()
    unread = [body]

    async def receive() -> Message:
        if not unread:
            # Never done: to disconnect, this client cancels the app.
            await asyncio.get_running_loop().create_future()
        return {"type": "http.request", "body": unread.pop(), "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            head.set_result(Streamed(message["status"], dict(message.get("headers", ()))))
        elif message.get("body"):
            head.result().pieces.put_nowait(message["body"])

    def end_body(_: object) -> None:
        if head.done():
            head.result().pieces.put_nowait(None)

    running = asyncio.ensure_future(app(scope, receive, send))
    running.add_done_callback(end_body)
    try:
        waits: list[asyncio.Future[Any]] = [running, head]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not head.done():
            await running  # raises what the app raised
            raise RuntimeError(f"{path} has ended without a response")
        yield head.result()
        if running.done():
            running.result()  # raises what the app raised amid the response
    finally:
        running.cancel()
        head.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def post(app: App, path: str, body: bytes, further: Mapping[str, Any] | None = None) -> Answer:
    """The complete response to a request. Cancelling it aborts the request. Raises what `request` raises."""
    async with request(app, path, body, further=further) as streamed:
        return Answer(streamed.status, streamed.headers, await streamed.whole())


def _scope(path: str, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> dict[str, Any]:
    """ASGI scope of a POST request with JSON. headers: in addition to the headers of the body."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *headers,
        ],
        "client": None,
        "server": None,
    }
