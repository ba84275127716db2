"""POST /invocations: the one route that Amazon SageMaker calls, with the body of another route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from ..capabilities import Ability
from ..endpoint import LONG_BODY_BYTES, Call, Message
from ..http.limits import Receive
from ..protocol import json
from ..protocol.errors import bad_request
from . import tei
from .chat import chat_completions
from .classify import classify
from .completions import completions
from .embeddings import embeddings, pooling
from .score import rerank, score

# Which fields the bodies of other routes have, what the model needs for them, and what serves them, in this order.
_POOLING: tuple[tuple[frozenset[str], frozenset[Ability], Callable[[Call], Awaitable[None]]], ...] = (
    (frozenset({"query"}), frozenset({"score"}), rerank),
    (frozenset({"queries", "documents", "text_1", "data_1", "items"}), frozenset({"score"}), score),
    (frozenset({"inputs"}), frozenset({"classify"}), tei.predict),
    (frozenset({"inputs"}), frozenset({"embed"}), tei.embed),
    (frozenset({"input", "messages"}), frozenset({"embed", "token_embed"}), embeddings),
    (frozenset({"input", "messages"}), frozenset({"classify"}), classify),
    (frozenset({"input", "messages"}), frozenset({"token_classify", "sparse"}), pooling),
)
_FIELDS = ("messages", "prompt", *sorted(frozenset().union(*(names for names, _, _ in _POOLING)) - {"messages"}))


async def invocations(call: Call) -> None:
    """Serve the body by its fields: as a chat or a completion, or as texts that are embedded, scored or classified."""
    content = await call.content()
    if len(content) > LONG_BODY_BYTES:
        found = await call.service.ask_about_body({"do": "has", "names": _FIELDS}, content)
    else:
        fields = json.parse(bytes(content))
        found = [name for name in _FIELDS if name in fields]
    call.forget_body()
    call.receive = _with_body(content, call.receive)
    await _route_for(found, call)(call)


def _route_for(fields: Collection[str], call: Call) -> Callable[[Call], Awaitable[None]]:
    """The function that serves a body with these fields. Raises ApiError if the model cannot do what it asks for."""
    abilities = call.service.abilities
    if "generate" in abilities and ("messages" in fields or "prompt" in fields):
        return chat_completions if "messages" in fields else completions
    for names, needs, handle in _POOLING:
        if names & set(fields) and needs & abilities:
            return handle
    if "generate" in abilities:
        return completions
    raise bad_request("this model generates no text; send the body of an embedding, a score or a classification",
                      code="unsupported_route")  # fmt: skip


def _with_body(content: bytes | bytearray, receive: Receive) -> Receive:
    """`receive` of a request whose body has been read: returns it again, then waits for the client to leave."""
    unread: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def again() -> Message:
        return unread.pop() if unread else await receive()

    return again
