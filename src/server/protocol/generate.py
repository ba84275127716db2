"""/inference/v1/generate, in vLLM's protocol: token ids in, token ids out. The request body and its responses.

The /render routes answer with such bodies, which can be sent to this route as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ...engine.api import SamplingParams
from .chat import ChatRequest, Message, ReasoningFormat, Tool
from .errors import ApiError, FieldError, unsupported
from .fields import MAX_TOOLS, NumLogprobs, SamplingFields, TemplateKwargs, TokenId
from .structured import StructuredFields
from .unserved import NO_FEATURES, Route
from .wire import Integer, Wire

# Fields of a request that are not fields of `sampling_params`.
_REQUEST_FIELDS = ("token_ids", "model", "stream", "stream_options", "cache_salt", "priority", "request_id", "timeout",
                   "output_mode", "parse_context")  # fmt: skip
MAX_ABORTED = 1024


class ParseContext(Wire):
    """The fields of a chat request that say how its answer is read."""

    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    reasoning_format: ReasoningFormat | None = None
    chat_template_kwargs: TemplateKwargs = None  # of the prompt, which is rendered already
    history_tool_call_cnt: Integer | None = Field(None, ge=0)  # for servers whose ids of calls are numbers

    def request(self) -> ChatRequest:
        """A chat request without a prompt, with the fields that decide how its answer is read."""
        read = ("tools", "tool_choice", "include_reasoning", "separate_reasoning", "reasoning_format")
        request = ChatRequest(messages=[Message(role="user", content="")])
        return request.model_copy(update={name: getattr(self, name) for name in read})


class AbortRequest(Wire):
    route = Route.ABORT
    request_ids: list[Annotated[str, Field(max_length=1024)]] = Field(
        max_length=MAX_ABORTED,
        fail_fast=True,
        description="ids of requests to /inference/v1/generate: as sent, or as answered",
    )


class GenerateRequest(SamplingFields):
    """The fields of `sampling_params` are read as if they were fields of the request, where they are accepted too."""

    route = Route.GENERATE
    token_ids: list[TokenId] = Field(min_length=1, fail_fast=True, description="the prompt")
    logprobs: NumLogprobs | None = Field(
        None, description="log-probabilities of the tokens, and of this number of best ones; -1: of all"
    )
    output_mode: Literal["tokens", "text", "derender"] | None = Field(
        None, description="`text` adds the text of the tokens; `derender` the message that they are, not in a stream"
    )
    parse_context: ParseContext | None = Field(
        None,
        description="how the answer is read, as the /render routes write it: for `output_mode: derender`, and for "
        "`stop`, which then does not apply to reasoning",
    )

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        """The body with the fields of `sampling_params` beside the others. Raises FieldError for a field in both."""
        if not isinstance(value, dict) or "sampling_params" not in value:
            return value
        body = dict(value)
        sampling = body.pop("sampling_params")
        if sampling is None:
            return body
        if not isinstance(sampling, dict):
            raise FieldError("must be an object", code="invalid_type", place="sampling_params")
        for name in sampling:
            if name in body or name in _REQUEST_FIELDS:
                message = f"`{name[:100]}` is a field of the request, not of `sampling_params`"
                raise FieldError(message, place=f"sampling_params.{name[:100]}")
        return {**body, **sampling}

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if self.output_mode == "derender" and self.stream:
            raise unsupported("output_mode", " as `derender` with `stream`: send each chunk to the /derender route")
        if self.parse_context is not None:
            try:
                self.parse_context.request().choice  # noqa: B018 (raises ApiError)
            except ApiError as error:
                error.param = f"parse_context.{error.param}"
                raise
        if not self.use_beam_search and self.best_of not in (None, self.n or 1):
            raise unsupported("best_of", " without `use_beam_search`: only /v1/completions samples several answers")


def context_of(body: ChatRequest, default_kwargs: Mapping[str, Any], *, has_history: bool) -> dict[str, Any]:
    """The `parse_context` of a rendered chat. has_history: whether `body` has all of its messages."""
    num_calls = sum(len(message.tool_calls or ()) for message in body.messages) if has_history else None
    given = {name: getattr(body, name) for name in ("separate_reasoning", "reasoning_format")}
    return {
        "tools": body.plain_tools(),
        "tool_choice": body.tool_choice,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "include_reasoning": body.include_reasoning is not False,
        "chat_template_kwargs": {**default_kwargs, **(body.chat_template_kwargs or {})} or None,
        "history_tool_call_cnt": num_calls,
        **{name: value for name, value in given.items() if value is not None},
    }


def as_request(
    request_id: str,
    token_ids: list[int],
    model: str,
    sampling: SamplingParams,
    fields: SamplingFields,
    parse_context: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A body of this route for a rendered request. Defaults of the deployment are filled in.

    Args:
        sampling: the parameters with which the server would sample the request.
        fields: the request that was rendered.
        parse_context: how the answer of a chat is read; None for a completion.
    """
    return {
        "parse_context": parse_context,
        "request_id": request_id,
        "token_ids": token_ids,
        "token_offsets": None,
        "features": NO_FEATURES,
        "sampling_params": _sampling_fields(sampling, fields),
        "model": model,
        "stream": bool(fields.stream),
        "stream_options": fields.stream_options and fields.stream_options.essentials(),
        "cache_salt": fields.cache_salt,
        "priority": fields.priority or 0,
        # What the server adds when it generates the answer itself, and cannot send in this body.
        "not_carried": [name for name in ("constraint", "reasoning") if getattr(sampling, name) is not None],
    }


def _sampling_fields(sampling: SamplingParams, fields: SamplingFields) -> dict[str, Any]:
    decided = {
        name: getattr(sampling, name)
        for name in GenerateRequest.model_fields
        if hasattr(sampling, name) and name not in ("bad_words", "logits_processors", "logit_bias")
    }
    given = {"bad_words": fields.bad_words, "logit_bias": fields.logit_bias}
    given |= {name: getattr(fields, name) for name in StructuredFields.model_fields}
    if fields.logits_processors:
        given["logits_processors"] = fields.essentials()["logits_processors"]
    if fields.use_beam_search:
        names = ("use_beam_search", "best_of", "length_penalty", "early_stopping")
        given |= {name: getattr(fields, name) for name in names}
    return {name: value for name, value in {**decided, **given}.items() if value not in (None, (), {})}


def response(request_id: str, created: int, model: str, choices: list[dict[str, Any]], usage: Mapping[str, Any],
             prompt_logprobs: list[Any] | None) -> dict[str, Any]:  # fmt: skip
    return {
        "request_id": request_id,
        "model": model,
        "created": created,
        "choices": choices,
        "usage": usage,
        "prompt_logprobs": prompt_logprobs,
        "kv_transfer_params": None,
    }
