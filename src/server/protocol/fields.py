"""What the request bodies of all generating routes have in common."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from ...beam_search import BeamSearchParams, EarlyStopping
from ...engine.api import ProcessorCall
from ...text.switches import MUST_BE_SWITCH, wrong_switch
from .errors import FieldError, bad_request, unsupported
from .structured import StructuredFields
from .transfer import KVTransferParams
from .wire import Integer, Wire

MAX_TIMEOUT_S = 31_536_000.0  # a year
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_N = 128
MAX_BIASES = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
MAX_TOOLS = 1024
MAX_SALT_CHARS = 1024
MAX_PROCESSORS = 16
MAX_PATH_CHARS = 256
MAX_TOKENS = 2**31 - 1

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
NO_LIMIT = -1  # as max_tokens: the rest of the context, as in llama.cpp's server
MaxTokens = Annotated[Integer, Field(ge=NO_LIMIT, le=MAX_TOKENS)]
NumLogprobs = Annotated[Integer, Field(ge=-1, le=2**31 - 1)]  # -1: of all tokens


def _checked_kwargs(value: dict[str, Any] | None) -> dict[str, Any] | None:
    """Refuse the texts "true" and "false": for a template every text that is not empty is true."""
    if (name := wrong_switch(value or {})) is not None:
        raise FieldError(MUST_BE_SWITCH, code="invalid_type", place=f".{name[:100]}")
    return value


TemplateKwargs = Annotated[
    Annotated[dict[str, Any], Field(max_length=64)] | None,
    AfterValidator(_checked_kwargs),
    Field(
        description="variables of the chat template, such as `enable_thinking`; those that it does not read are named "
        "in the header `X-Stoker-Ignored-Fields`",
    ),
]


class StreamOptions(Wire):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CommonFields(Wire):
    """Fields that all generating routes have in common. None: the deployment's default."""

    model: str | None = Field(None, max_length=512, description="a served model name; may be absent")
    stream: bool | None = Field(None, description="server-sent events instead of one answer")
    temperature: float | None = Field(None, ge=0, le=2, description="0 takes the most likely token")
    top_p: float | None = Field(None, gt=0, le=1, description="samples among the tokens that reach this probability")
    top_k: Integer | None = Field(None, ge=-1, le=2**31 - 1, description="samples among the best; 0 and -1 are off")
    min_p: float | None = Field(None, ge=0, le=1, description="minimum probability, relative to the best token's")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="of generated tokens")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="of generated tokens, by their number")
    repetition_penalty: float | None = Field(None, gt=0, le=10, description="factor for tokens of prompt and answer")
    logit_bias: dict[str, float] | None = Field(
        None, json_schema_extra={"maxProperties": MAX_BIASES}, description="token id to a change of its logit"
    )
    allowed_token_ids: list[TokenId] | None = Field(
        None, max_length=1 << 18, fail_fast=True, description="no other tokens are sampled; an empty list is off"
    )
    bad_words: list[Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARS)]] | None = Field(
        None, max_length=MAX_BAD_WORDS, description="texts that are not generated, by their tokens"
    )
    seed: Integer | None = Field(
        None, ge=-(2**63), le=2**63 - 1, description="repeats an answer; -1 is a random one, as in vLLM"
    )
    min_tokens: Integer | None = Field(None, ge=0, le=MAX_TOKENS, description="the answer does not end before")
    stop: list[str] | None = Field(
        None, description="one or several texts that end the answer: its content, or the arguments of a call; not its "
        "reasoning"
    )  # fmt: skip
    stop_token_ids: list[TokenId] | None = Field(None, max_length=1024, description="tokens that end the answer")
    ignore_eos: bool | None = Field(None, description="the model's end token does not end the answer")
    include_stop_str_in_output: bool | None = Field(None, description="the text includes what ended it")
    skip_special_tokens: bool | None = Field(None, description="special tokens are not shown; true by default")
    priority: Integer | None = Field(
        None, ge=-(2**31), le=2**31 - 1, description="smaller first; needs `scheduler.scheduling_policy: priority`"
    )
    cache_salt: str | None = Field(
        None, min_length=1, max_length=MAX_SALT_CHARS, description="shares cached prefixes only with the same salt"
    )
    request_id: str | None = Field(
        None, description="the last part of the answer's id; the header `X-Request-Id` has precedence"
    )
    timeout: float | None = Field(
        None,
        gt=0,
        le=MAX_TIMEOUT_S,
        description="seconds until the request is aborted; as the header X-Request-Timeout",
    )
    logits_processors: list[ProcessorCall] | None = Field(
        None, max_length=MAX_PROCESSORS, description="needs `model.logits_processor_pattern`"
    )

    @field_validator("request_id")
    @classmethod
    def _safe_id(cls, value: str | None) -> str | None:
        if value is not None and REQUEST_ID.fullmatch(value) is None:
            raise FieldError("must have 1 to 128 letters, digits, dots, underscores and hyphens")
        return value

    @field_validator("stop", mode="before", json_schema_input_type=str | list[str] | None)
    @classmethod
    def _stop_list(cls, value: Any) -> Any:
        """One string or several. Checked here, so that errors refer to `stop` in both forms."""
        if isinstance(value, str):
            value = [value]
        if value is None:
            return value
        if not isinstance(value, list):
            raise FieldError("must be a string or a list of strings", code="invalid_type")
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


class SamplingFields(CommonFields, StructuredFields):
    """Fields that /v1/completions and /v1/chat/completions have in common."""

    stream_options: StreamOptions | None = Field(
        None, description="`include_usage`: a last chunk with usage; `continuous_usage_stats`: usage in every chunk"
    )
    n: Integer | None = Field(None, ge=1, le=MAX_N, description="number of choices")
    best_of: Integer | None = Field(
        None,
        ge=1,
        le=MAX_N,
        description="/v1/completions samples this number of answers, and returns the `n` with the best mean logprob; "
        "with `use_beam_search`, on both routes, it is the number of beams",
    )
    use_beam_search: bool | None = Field(
        None, description="the answers are the `n` best of a search with `best_of` (or else `n`) beams; not in streams"
    )
    length_penalty: float | None = Field(
        None,
        ge=-10,
        le=10,
        description="with `use_beam_search`: answers are ranked by logprob / length ** `length_penalty`; 1 by default",
    )
    early_stopping: EarlyStopping | None = Field(
        None,
        description="with `use_beam_search`: true ends it at `best_of` answers, `never` when no beam can become "
        "better, false, the default, when none is expected to",
    )
    max_tokens: MaxTokens | None = Field(
        None, description="maximum length of the answer; reduced to the rest of the context, which -1 asks for"
    )
    truncate_prompt_tokens: Integer | None = Field(
        None, ge=-1, le=MAX_TOKENS, description="maximum length; a longer prompt is cut to it; -1: what fits"
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="the side of the prompt that is cut; left by default"
    )
    prompt_logprobs: NumLogprobs | None = Field(None, description="as `logprobs`, of the prompt's tokens")
    kv_transfer_params: KVTransferParams | None = Field(
        None, description="prefill and decode on different servers; needs `kv_transfer.kv_connector`"
    )
    return_token_ids: bool | None = Field(None, description="adds `token_ids` and `prompt_token_ids`")
    return_tokens_as_token_ids: bool | None = Field(None, description="tokens in `logprobs` are `token_id:N`")

    @property
    def unknown_fields(self) -> list[str]:
        nested = self.stream_options.unknown_fields if self.stream_options else []
        names = [f"stream_options.{name}" for name in nested]
        return super().unknown_fields + [name for name in names if name not in self._unserved]

    @property
    def wants_usage(self) -> bool:
        options = self.stream_options
        return options is not None and bool(
            options.continuous_usage_stats if options.include_usage is None else options.include_usage
        )

    @property
    def wants_continuous_usage(self) -> bool:
        """`include_usage: false` switches this off, too, as in vLLM."""
        return self.wants_usage and self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if self.wants_usage and not self.stream:
            raise unsupported("stream_options", " without `stream: true`")
        grammar = self.output_grammar
        if self.use_beam_search and grammar is not None:
            raise unsupported(
                grammar.param, " with `use_beam_search`: beams are ranked by the model's log-probabilities"
            )
        if self.use_beam_search and self.stream:
            raise unsupported("stream", " with `use_beam_search`: the answers are known at the end")
        for name, off in (("length_penalty", 1), ("early_stopping", False)):
            if not self.use_beam_search and getattr(self, name) not in (None, off):
                raise unsupported(name, " without `use_beam_search: true`")
        if self.best_of is not None and self.best_of < (self.n or 1):
            raise bad_request(f"best_of is {self.best_of}, less than n, which is {self.n}", param="best_of")
        if self.truncation_side is not None and self.truncate_prompt_tokens is None:
            raise unsupported("truncation_side", " without `truncate_prompt_tokens`")

    @property
    def beam_search(self) -> BeamSearchParams | None:
        if not self.use_beam_search:
            return None
        return BeamSearchParams(
            width=self.best_of or self.n or 1,
            length_penalty=1.0 if self.length_penalty is None else self.length_penalty,
            early_stopping=self.early_stopping or False,
        )

    @field_validator("early_stopping", mode="plain", json_schema_input_type=EarlyStopping | None)
    @classmethod
    def _known_stopping(cls, value: Any) -> Any:
        """Check the value here: a pydantic union would report one error for each member."""
        if value is not None and not isinstance(value, bool) and value != "never":
            raise FieldError('must be true, false or "never"')
        return value

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _keeps_tokens(cls, value: int | None) -> int | None:
        if value == 0:
            raise FieldError("must be -1 or at least 1: a prompt without tokens cannot be continued")
        return value


def _processor_call(item: Any, index: int) -> ProcessorCall:
    if isinstance(item, ProcessorCall):  # of a request in another dialect, which was read before
        return item
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
