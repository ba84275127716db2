"""A streamed request to an ASGI app in this process. server/batch/call.py is for complete responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from ..server.batch.call import App, scope_of

_NOT_PASSED_ON = frozenset({"content-length", "content-type", "transfer-encoding", "content-encoding", "host"})


@dataclass
class Streamed:
    """A response whose head has arrived. `pieces` holds parts of its body, and None at its end."""

    status: int
    pieces: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)

    async def parts(self) -> AsyncGenerator[bytes, None]:
        while (piece := await self.pieces.get()) is not None:
            yield piece

    async def whole(self) -> bytes:
        return b"".join([piece async for piece in self.parts()])


@asynccontextmanager
async def request(app: App, path: str, body: bytes, headers: Mapping[str, str]) -> AsyncGenerator[Streamed, None]:
    """Send a POST request. The end of the block aborts it, unless it has ended."""
    passed = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in headers.items()
        if name.lower() not in _NOT_PASSED_ON
    ]
    scope = scope_of(path, body, passed)
    head: asyncio.Future[Streamed] = asyncio.get_running_loop().create_future()
    unread = [body]

    async def receive() -> dict[str, Any]:
        if not unread:
            await asyncio.get_running_loop().create_future()  # this client does not disconnect: it cancels
        return {"type": "http.request", "body": unread.pop(), "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            head.set_result(Streamed(message["status"]))
        elif message.get("body"):
            head.result().pieces.put_nowait(message["body"])

    running = asyncio.ensure_future(app(scope, receive, send))
    running.add_done_callback(lambda _: head.result().pieces.put_nowait(None) if head.done() else None)
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
