"""A request to an ASGI app in this process, with a complete response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..endpoint import Message

App = Callable[..., Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[bytes, bytes]
    body: bytes


def scope_of(path: str, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> Message:
    """Of a POST request with JSON. headers: in addition to those of the body."""
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


async def post(app: App, path: str, body: bytes, further: Mapping[str, Any] | None = None) -> Answer:
    """Cancelling it aborts the request. further: entries of the scope, which no client can set."""
    scope = {**scope_of(path, body), **(further or {})}
    unread = [body]
    started: dict[str, Any] = {"status": 500, "headers": []}
    pieces: list[bytes] = []

    async def receive() -> Message:
        if not unread:
            await asyncio.get_running_loop().create_future()  # this client does not disconnect
        return {"type": "http.request", "body": unread.pop(), "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            started.update(message)
        else:
            pieces.append(message.get("body", b""))

    await app(scope, receive, send)
    return Answer(started["status"], dict(started["headers"]), b"".join(pieces))
