"""POST /invocations: the one route that Amazon SageMaker calls, with the body of a chat or of a completion."""

from __future__ import annotations

from ..endpoint import Call, Message
from ..limits import Receive, check_json_content, read_body
from ..protocol import json
from .chat import chat_completions
from .completions import completions


async def invocations(call: Call) -> None:
    """As /v1/chat/completions if the body has `messages`, else as /v1/completions."""
    check_json_content(call.scope)
    with call.service.bodies.reserve() as reserve:
        content = await read_body(call.receive, call.service.limits, reserve)
    is_chat = await call.sized(len(content), lambda: "messages" in json.parse(content))
    call.receive = _with_body(content, call.receive)
    await (chat_completions if is_chat else completions)(call)


def _with_body(content: bytes, receive: Receive) -> Receive:
    """`receive` of a request whose body has been read: returns it again, then waits for the client to leave."""
    unread: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def again() -> Message:
        return unread.pop() if unread else await receive()

    return again
