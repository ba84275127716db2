"""/tokenize and /detokenize: the request bodies."""

from __future__ import annotations

from pydantic import Field

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
    # fail_fast: without it an error is stored for each of a million wrong values
    tokens: list[TokenId] = Field(fail_fast=True)
    skip_special_tokens: bool = False
