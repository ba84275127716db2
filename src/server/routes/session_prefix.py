"""Reports where the prompt of a session diverges from its previous one: in the access log, a metric and a header."""

from __future__ import annotations

from collections.abc import Sequence

from ..agents.sessions import packed, session_of
from ..endpoint import Call
from ..protocol.chat import ChatRequest

_ASKED = (b"x-prefix-diagnostic", b"true")
HEADER = "x-prefix-kept"


async def note_prefix(call: Call, body: ChatRequest, prompt: Sequence[int]) -> None:
    """prompt: as it is sent to the engine. Without a session that the request names, there is nothing to compare."""
    headers = call.scope["headers"]
    name = session_of(headers, body.prompt_cache_key, body.metadata)
    if name is None:
        return
    tokens = await call.sized(len(prompt), lambda: packed(prompt))
    prefix = call.service.sessions.next(call.cache_scope.root_text, name, tokens)
    if prefix is None:
        return
    if prefix.has_diverged:
        call.log_fields["prefix_diverged"] = f"at token {prefix.num_kept} of {prefix.num_before}"
        call.service.metrics.prefix_diverged(prefix.num_before - prefix.num_kept)
    if _ASKED in headers:
        call.headers[HEADER] = f"{prefix.num_kept} of {prefix.num_before}"
