"""/tokenize and /detokenize: the request bodies."""

from __future__ import annotations

from pydantic import Field

from .chat import Conversation
from .fields import TokenId
from .unserved import Route
from .wire import Wire


class TokenizeRequest(Conversation):
    """Body with either a prompt or messages."""

    route = Route.TOKENIZE
    model: str | None = Field(None, description="a served model name; may be absent")
    prompt: str | None = Field(None, description="a text, in place of `messages`")
    # false for messages by default, because their template writes them
    add_special_tokens: bool | None = Field(None, description="true by default for a prompt, false for messages")
    return_token_strs: bool | None = Field(None, description="adds each token's text")

    @property
    def texts_to_encode(self) -> list[str]:
        return [] if self.prompt is None else [self.prompt]


class DetokenizeRequest(Wire):
    route = Route.DETOKENIZE
    model: str | None = Field(None, description="a served model name; may be absent")
    # fail_fast: without it an error is stored for each of a million wrong values
    tokens: list[TokenId] = Field(fail_fast=True, description="token ids")
    skip_special_tokens: bool = Field(False, description="special tokens are not shown")
