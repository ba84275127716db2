"""/tokenize and /detokenize on the wire: the request bodies."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from .chat import MAX_MESSAGES, Message, Tool
from .fields import MAX_TOOLS, TokenId, Wire


class TokenizeRequest(Wire):
    """Either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    add_special_tokens: bool | None = None  # default: yes for a prompt, no for messages, whose template writes them
    return_token_strs: bool = False
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = Field(None, max_length=64)


class DetokenizeRequest(Wire):
    model: str | None = None
    tokens: list[TokenId]
    skip_special_tokens: bool = False
