"""What the request bodies of all generating routes have in common: sampling fields, and fields that are refused."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ...engine.api import ProcessorCall
from .errors import FieldError, unsupported

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_N = 128
MAX_BIASES = 1024
MAX_TOOLS = 128
MAX_PROCESSORS = 16
MAX_PATH_CHARS = 256
MAX_TOKENS = 2**31 - 1

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]

# Fields of OpenAI's API, or of servers like it, that are not supported. A request with one is refused.
# fmt: off
REFUSED = frozenset({
    "allowed_token_ids", "audio", "bad_words", "best_of", "chat_template", "function_call", "functions",
    "guided_choice", "guided_decoding_backend", "guided_grammar", "guided_json", "guided_regex",
    "guided_whitespace_pattern", "kv_transfer_params", "length_penalty", "lora_request",
    "mm_processor_kwargs", "prediction", "prompt_embeds", "structured_outputs", "suffix", "thinking_token_budget",
    "truncate_prompt_tokens", "use_beam_search", "verbosity", "web_search_options",
})
# Accepted without effect on the response: labels for the operator, and routing hints.
LABELS = frozenset({
    "metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "store", "user",
})
# fmt: on


class Wire(BaseModel):
    """A request body. Types are strict: "8" is not a number, 1.0 is not an integer. Unknown fields are kept apart."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    @property
    def unknown_fields(self) -> list[str]:
        return sorted((self.model_extra or {}).keys() - LABELS)

    def refuse_unsupported(self) -> None:
        """Raises ApiError for the first field of REFUSED that is not null."""
        for name, value in (self.model_extra or {}).items():
            if name in REFUSED and value is not None:
                raise unsupported(name)


class StreamOptions(Wire):
    include_usage: bool = False


class SamplingFields(Wire):
    """Fields that /v1/completions and /v1/chat/completions have in common. None: the deployment's default."""

    model: str = Field(min_length=1, max_length=512)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_N)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: dict[str, float] | None = Field(None, json_schema_extra={"maxProperties": MAX_BIASES})
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    min_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)
    stop: list[str] | None = None
    stop_token_ids: list[TokenId] | None = Field(None, max_length=1024)
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = Field(None, ge=0, le=2**31 - 1)
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: int | None = Field(None, ge=-(2**31), le=2**31 - 1)
    cache_salt: str | None = Field(None, min_length=1, max_length=256)
    logits_processors: list[ProcessorCall] | None = Field(None, max_length=MAX_PROCESSORS)

    @property
    def unknown_fields(self) -> list[str]:
        nested = self.stream_options.unknown_fields if self.stream_options else []
        return super().unknown_fields + [f"stream_options.{name}" for name in nested]

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @field_validator("stop", mode="before", json_schema_input_type=str | list[str] | None)
    @classmethod
    def _stop_list(cls, value: Any) -> Any:
        """One string or several. Checked here, so that errors refer to `stop` in both forms."""
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list):
            return value
        if len(value) > MAX_STOP_STRINGS:
            raise FieldError(f"must have at most {MAX_STOP_STRINGS} stop strings", code="array_above_max_length")
        for stop in value:
            if stop == "":
                raise FieldError("a stop string cannot be empty")
            if isinstance(stop, str) and len(stop) > MAX_STOP_CHARS:
                raise FieldError(f"each must have at most {MAX_STOP_CHARS} characters", code="string_above_max_length")
        return value

    @field_validator("logits_processors", mode="before")
    @classmethod
    def _processor_calls(cls, value: Any) -> Any:
        """Import paths, or objects of `qualname`, `args` and `kwargs`."""
        if not isinstance(value, list):
            return value
        return [_processor_call(item, index) for index, item in enumerate(value[: MAX_PROCESSORS + 1])]

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _bias_size(cls, value: Any) -> Any:
        """Checked here, because pydantic checks the length last, after it has stored an error for each wrong value."""
        if isinstance(value, dict) and len(value) > MAX_BIASES:
            raise FieldError(f"must have at most {MAX_BIASES} entries", code="array_above_max_length")
        return value

    @field_validator("logit_bias")
    @classmethod
    def _bias_range(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key, bias in (value or {}).items():
            if not (key.isascii() and key.isdigit() and len(key) <= 10):
                raise FieldError(f"{key[:40]!r} is not a token id", code="invalid_token_id")
            if not -100 <= bias <= 100:
                raise FieldError("a bias must be from -100 to 100")
        return value


def _processor_call(item: Any, index: int) -> ProcessorCall:
    place = f"[{index}]"
    if isinstance(item, str):
        item = {"qualname": item}
    if not isinstance(item, dict):
        raise FieldError("must be an import path, or an object with `qualname`", code="invalid_type", place=place)
    for name in item:
        if name not in ("qualname", "args", "kwargs"):
            raise FieldError(f"unknown key {name[:40]!r}; the keys are `qualname`, `args` and `kwargs`", place=place)
    path, args, kwargs = item.get("qualname"), item.get("args"), item.get("kwargs")
    if not isinstance(path, str) or not 0 < len(path) <= MAX_PATH_CHARS:
        raise FieldError(f"must be an import path of at most {MAX_PATH_CHARS} characters", place=f"{place}.qualname")
    if not isinstance(args, list | None):
        raise FieldError("must be a list", code="invalid_type", place=f"{place}.args")
    if not isinstance(kwargs, dict | None):
        raise FieldError("must be an object", code="invalid_type", place=f"{place}.kwargs")
    return ProcessorCall(path, tuple(args or ()), kwargs or {})
