"""POST /v1/responses with tools of type `mcp`: responses are asked for until the model calls none of them.

Without configured servers (`server.tool_server`), or without such a tool, the request is that of responses.py.
"""

from __future__ import annotations

import asyncio
import json as plain_json
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from ..endpoint import Call, Message
from ..http.limits import Receive
from ..protocol import json
from ..protocol.errors import bad_request
from ..tool_server.events import ItemEvents
from ..tool_server.loop import ToolLoop
from . import responses

MAX_BYTES = 1 << 20  # of a request with such tools, which is read here


async def create(call: Call) -> None:
    servers = call.service.tool_servers
    if servers is None:
        await responses.create(call)
        return
    content = bytes(await call.content())
    call.receive = _replayed(content, call.receive)
    call.forget_body()
    body = _with_servers(content)
    if body is None:
        await responses.create(call)
        return

    async def ask(inner: dict[str, Any]) -> dict[str, Any]:
        return await _response(call, inner)

    model = call.service.named_model(body.get("model"))
    loop = ToolLoop(servers, body, ask)
    response_id = f"resp_{uuid.uuid4().hex}"
    await call.receive()  # the body; what follows is the end of the connection
    if body.get("stream"):
        events = ItemEvents(response_id, model, body)
        await call.stream(_frames(loop, events), end=b"", error_frame=events.failed)
        return
    async with call.running():
        response: dict[str, Any] = {}
        async for _, last in loop.items():
            response = last or response
        await call.answer({**response, "id": response_id})


def _with_servers(content: bytes) -> dict[str, Any] | None:
    """The body, if it has a tool of type `mcp`. Raises ApiError."""
    if b'"mcp"' not in content:
        return None
    if len(content) > MAX_BYTES:
        message = f"a body with tools of type `mcp` can have at most {MAX_BYTES} bytes"
        raise bad_request(message, code="json_too_large", param="tools")
    body = json.parse(content)
    tools = body.get("tools")
    kinds = [tool.get("type") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return body if "mcp" in kinds else None


async def _frames(loop: ToolLoop, events: ItemEvents) -> AsyncGenerator[bytes, None]:
    is_first = True
    async for item, response in loop.items():
        if is_first:
            is_first = False
            yield events.begin()
        yield events.item(item) if response is None else events.end(response)


async def _response(call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """The response to a body without servers, as the route makes it. Raises ApiError."""
    content = json.dump(body)
    pieces: list[bytes] = []

    async def send(message: Message) -> None:
        pieces.append(message.get("body", b""))

    scope = {**call.scope, "stoker.unique_id": uuid.uuid4().hex, "stoker.request_id": None}
    inner = Call(call.service, scope, _replayed(content, None), send, call.route)
    try:
        await responses.create(inner)
    finally:
        inner.forget_body()
    call.headers.update(inner.headers)
    found: dict[str, Any] = plain_json.loads(b"".join(pieces))
    return found


def _replayed(content: bytes, rest: Receive | None) -> Callable[[], Awaitable[Message]]:
    """A body that was read already; then what `rest` receives, or nothing."""
    unread = [content]

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        if rest is not None:
            return dict(await rest())
        await asyncio.get_running_loop().create_future()  # this client does not leave
        raise AssertionError

    return receive
