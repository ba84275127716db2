"""/v1/completions: the request body, and the object of its responses."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from .errors import FieldError, unsupported
from .fields import MaxTokens, NumLogprobs, SamplingFields
from .unserved import Route

MAX_PROMPTS = 1024


class CompletionRequest(SamplingFields):
    route = Route.TEXT
    prompt: list[str] | list[list[int]] = Field(description="one or several texts, or lists of token ids")
    max_tokens: MaxTokens | None = Field(
        None, description="as in chats, but 16 by default; 0 with `echo` and `logprobs` scores the prompt"
    )
    echo: bool | None = Field(None, description="the text begins with the prompt")
    logprobs: NumLogprobs | None = Field(
        None, description="log-probabilities of the tokens, and of this number of best ones; -1: of all"
    )
    add_special_tokens: bool = Field(True, description="the tokenizer adds special tokens, such as BOS")

    @property
    def num_sampled(self) -> int:
        """Sequences that are sampled for each prompt; the best `n` are returned."""
        return (None if self.use_beam_search else self.best_of) or self.n or 1

    @property
    def texts_to_encode(self) -> list[str]:
        is_cut = self.truncate_prompt_tokens is not None
        return [] if is_cut else [prompt for prompt in self.prompt if isinstance(prompt, str)]

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if self.use_beam_search and self.max_tokens == 0:
            raise unsupported("max_tokens", " as 0 with `use_beam_search`")
        if self.stream and self.num_sampled > (self.n or 1):
            raise unsupported("best_of", " in a stream: the best answers are known at the end")

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


# Fields that clients read without a check: null in a response whose request did not ask for them.
_NULL_IN_CHOICE = ("stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids")


def head(response_id: str, created: int, model: str) -> dict[str, Any]:
    """The fields that a response and each chunk of a streamed one have in common."""
    return {"id": response_id, "object": "text_completion", "created": created, "model": model}


def completion(head: dict[str, Any], choices: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
    shown = [{**choice, **{name: choice.get(name) for name in _NULL_IN_CHOICE}} for choice in choices]
    return {**head, "choices": shown, "service_tier": None, "system_fingerprint": None, "usage": usage}
