"""/tokenize and /detokenize: the request bodies."""

from __future__ import annotations

from .chat import Conversation
from .fields import TokenId, Wire


class TokenizeRequest(Conversation):
    """Has either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None  # default: true for a prompt, false for messages, whose template writes them
    return_token_strs: bool = False


class DetokenizeRequest(Wire):
    model: str | None = None
    tokens: list[TokenId]
    skip_special_tokens: bool = False
