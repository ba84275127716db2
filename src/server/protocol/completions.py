"""/v1/completions: the request body, and the object of its responses."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from .errors import FieldError
from .fields import MAX_TOKENS, SamplingFields

MAX_PROMPTS = 1024


class CompletionRequest(SamplingFields):
    prompt: list[str] | list[list[int]]
    max_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)  # 0: the prompt alone
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=2**31 - 1)
    add_special_tokens: bool = True

    @field_validator("prompt", mode="plain", json_schema_input_type=str | list[str] | list[int] | list[list[int]])
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        """One prompt or several, each a text or token ids, as a list of prompts.

        Not a pydantic union, which would report an error once for each form, and try a million ids against each form.
        """
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list):
            raise FieldError("must be a string, token ids, or a list of either", code="invalid_type")
        if not value:
            raise FieldError("the list has no prompt", code="empty_array")
        if isinstance(value[0], int):
            value = [value]
        if len(value) > MAX_PROMPTS:
            raise FieldError(f"must have at most {MAX_PROMPTS} prompts", code="array_above_max_length")
        is_right = _is_text if isinstance(value[0], str) else _is_ids
        for index, prompt in enumerate(value):
            if not is_right(prompt):
                message = "prompts must all be texts, or all be lists of token ids"
                raise FieldError(message, code="invalid_type", place=f"[{index}]")
        return value


def _is_text(prompt: Any) -> bool:
    return isinstance(prompt, str)


def _is_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(type(token_id) is int for token_id in prompt)  # bool is a subclass of int


def completion(
    response_id: str, created: int, model: str, choices: list[dict[str, Any]], usage: dict[str, Any] | None
) -> dict[str, Any]:
    """A response, and each chunk of a streamed response: both have the same shape."""
    body = {"id": response_id, "object": "text_completion", "created": created, "model": model, "choices": choices}
    return body if usage is None else {**body, "usage": usage}
