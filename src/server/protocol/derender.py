"""POST .../derender: the request bodies. Token ids that /inference/v1/generate returned, on their way to an answer.

Fields that other engines add to what they generate are ignored, as long as they do not change the answer.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any

from pydantic import Field, field_validator

from .chat import ChatRequest
from .completions import MAX_PROMPTS, CompletionRequest
from .errors import ApiError, FieldError, unsupported
from .fields import MAX_N, TokenId
from .unserved import Route
from .wire import Integer, Wire

MAX_STATE_TOKENS = 1024  # of a state without a parser
MAX_STATE_CONTEXT = 4  # tokens before the next log-probability
MAX_CALLS = 4096
MAX_ID_CHARS = 1024
MAX_REASON_CHARS = 1 << 12

TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Count = Annotated[Integer, Field(ge=0)]
CallId = Annotated[str, Field(max_length=MAX_ID_CHARS)]
_NAMED_ID = "token_id:"


class Alternative(Wire):
    """A token with its log-probability. `token`: its name `token_id:N`, where there is no `token_id`."""

    token_id: TokenId | None = None
    token: str | None = None
    logprob: float | None = None

    @property
    def id(self) -> int | None:
        if self.token_id is not None or self.token is None:
            return self.token_id
        digits = self.token.removeprefix(_NAMED_ID)
        is_id = self.token.startswith(_NAMED_ID) and digits.isascii() and digits.isdigit() and len(digits) <= 10
        return int(digits) if is_id else None


class ScoredToken(Alternative):
    rank: Integer | None = None
    top_logprobs: list[Alternative] | None = Field(None, fail_fast=True)


class Scores(Wire):
    content: list[ScoredToken] | None = Field(None, fail_fast=True)


class GeneratedChoice(Wire):
    index: Count = 0
    token_ids: TokenIds | None = None
    finish_reason: str | None = Field(None, max_length=64)
    stop_reason: int | Annotated[str, Field(max_length=MAX_REASON_CHARS)] | None = None
    logprobs: Scores | None = None


class Generated(Wire):
    """An answer of /inference/v1/generate, or one chunk of it."""

    request_id: str | None = Field(None, max_length=MAX_ID_CHARS)
    choices: list[GeneratedChoice] = Field(max_length=MAX_N)
    prompt_logprobs: list[Any] | None = None
    prompt_token_ids: TokenIds | None = None
    kv_transfer_params: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    output_mode: str | None = None

    @field_validator("output_mode")
    @classmethod
    def _not_decoded(cls, value: str | None) -> str | None:
        if value not in (None, "tokens"):
            raise FieldError(f"is {value[:20]!r}: only an answer of tokens can be decoded")
        return value


class StreamState(Wire):
    """What decoding a chunk needs from the chunks before it; the server keeps nothing.

    With a parser: `output_token_ids`, divided by `output_chunk_lens`. Without one: `prev_tokens`, whose text is
    complete up to `read_offset`.
    """

    role_sent: bool = False
    prev_tokens: TokenIds = Field(default_factory=list, max_length=MAX_STATE_TOKENS, fail_fast=True)
    prefix_offset: Count = 0
    read_offset: Count = 0
    logprob_context_token_ids: TokenIds = Field(default_factory=list, max_length=MAX_STATE_CONTEXT, fail_fast=True)
    logprob_text_offset: Count = 0
    output_token_ids: TokenIds = Field(default_factory=list, fail_fast=True)
    output_chunk_lens: list[Count] = Field(default_factory=list, fail_fast=True)
    tools_streamed: bool = False
    last_tool_call_ids: list[CallId] = Field(default_factory=list, max_length=MAX_CALLS, fail_fast=True)


class _Derender(Wire):
    """Fields of both routes. `stream`: one chunk in, one chunk out."""

    model: str | None = Field(None, max_length=512, description="a served model name; may be absent")
    stream: bool | None = Field(None, description="decodes one chunk: send `generate_chunk`, and `stream_state`")
    generate_chunk: Generated | None = Field(None, description="one chunk of /inference/v1/generate, with `stream`")
    stream_state: StreamState | None = Field(
        None, description="as the answer to the chunk before returned it; null for the first chunk of a choice"
    )

    @property
    @abstractmethod
    def original(self) -> tuple[str, Wire | None]:
        """The request that was generated, and the name of its field."""

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        name, request = self.original
        if request is not None:
            try:
                request.refuse_unsupported()
            except ApiError as error:
                error.param = name if error.param is None else f"{name}.{error.param}"
                raise

    @property
    def unknown_fields(self) -> list[str]:
        name, request = self.original
        nested = [] if request is None else [f"{name}.{each}" for each in request.unknown_fields]
        return super().unknown_fields + nested


class DerenderChatRequest(_Derender):
    route = Route.DERENDER_CHAT
    generate_response: Generated | None = Field(None, description="an answer of /inference/v1/generate, of token ids")
    chat_request: ChatRequest | None = Field(
        None,
        description="the original request: its tools, `tool_choice`, reasoning, stop and `logprobs` fields count; "
        "required if the server reads reasoning or calls",
    )
    prompt_tokens: Count | None = Field(None, description="length of the prompt, for `usage`")
    prompt_token_ids: TokenIds | None = Field(
        None, description="the prompt: whether it opens the reasoning, and what the first token follows"
    )

    @property
    def original(self) -> tuple[str, Wire | None]:
        return "chat_request", self.chat_request


class DerenderCompletionRequest(_Derender):
    route = Route.DERENDER_TEXT
    generate_responses: list[Generated] | None = Field(
        None, min_length=1, max_length=MAX_PROMPTS, description="answers of /inference/v1/generate, one for each prompt"
    )
    completion_request: CompletionRequest | None = Field(
        None, description="the original request: its stop and `logprobs` fields count"
    )
    prompt_tokens: Count | Annotated[list[Count], Field(max_length=MAX_PROMPTS)] | None = Field(
        None, description="length of the prompt, for `usage`; of several prompts a list"
    )
    prompt_token_ids: TokenIds | Annotated[list[TokenIds | None], Field(max_length=MAX_PROMPTS)] | None = Field(
        None, description="the prompt, or a list with the prompt of each answer"
    )

    @property
    def original(self) -> tuple[str, Wire | None]:
        return "completion_request", self.completion_request

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if self.completion_request is not None and self.completion_request.echo:
            raise unsupported("completion_request.echo", ": what was generated has no prompt")
