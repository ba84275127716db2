"""POST /invocations: the one route that Amazon SageMaker calls, with the body of a chat or of a completion."""

from __future__ import annotations

from ..endpoint import LONG_BODY_BYTES, Call, Message
from ..http.limits import Receive
from ..protocol import json
from .chat import chat_completions
from .completions import completions


async def invocations(call: Call) -> None:
    """Serve as /v1/chat/completions if the body has `messages`, else as /v1/completions."""
    content = await call.content()
    if len(content) > LONG_BODY_BYTES:
        is_chat = await call.service.ask_about_body({"do": "has", "name": "messages"}, content)
    else:
        is_chat = "messages" in json.parse(bytes(content))
    call.forget_body()
    call.receive = _with_body(content, call.receive)
    await (chat_completions if is_chat else completions)(call)


def _with_body(content: bytes | bytearray, receive: Receive) -> Receive:
    """`receive` of a request whose body has been read: returns it again, then waits for the client to leave."""
    unread: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def again() -> Message:
        return unread.pop() if unread else await receive()

    return again
