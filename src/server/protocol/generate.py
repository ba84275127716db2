"""/inference/v1/generate, in vLLM's protocol: token ids in, token ids out. The request body and its responses.

The /render routes answer with such bodies, which can be sent to this route as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from ...engine.api import SamplingParams
from .errors import FieldError, unsupported
from .fields import NumLogprobs, SamplingFields, TokenId
from .structured import StructuredFields
from .unserved import NO_FEATURES, Route

# What a request says besides `sampling_params`.
_OF_THE_REQUEST = ("token_ids", "model", "stream", "stream_options", "cache_salt", "priority", "request_id", "timeout")


class GenerateRequest(SamplingFields):
    """The fields of `sampling_params` are read as if they were fields of the request, where they are accepted too."""

    route = Route.GENERATE
    token_ids: list[TokenId] = Field(min_length=1, fail_fast=True, description="the prompt")
    logprobs: NumLogprobs | None = Field(
        None, description="log-probabilities of the tokens, and of this number of best ones; -1: of all"
    )

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "sampling_params" not in value:
            return value
        body = dict(value)
        sampling = body.pop("sampling_params")
        if sampling is None:
            return body
        if not isinstance(sampling, dict):
            raise FieldError("must be an object", code="invalid_type", place="sampling_params")
        for name in sampling:
            if name in body or name in _OF_THE_REQUEST:
                message = f"`{name[:100]}` is a field of the request, not of `sampling_params`"
                raise FieldError(message, place=f"sampling_params.{name[:100]}")
        return {**body, **sampling}

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if not self.use_beam_search and self.best_of not in (None, self.n or 1):
            raise unsupported("best_of", " without `use_beam_search`: only /v1/completions samples several answers")


def as_request(
    request_id: str, token_ids: list[int], model: str, sampling: SamplingParams, fields: SamplingFields
) -> dict[str, Any]:
    """A body of this route for a rendered request. Defaults of the deployment are filled in.

    sampling: as the request would be sampled. fields: of the request that was rendered.
    """
    return {
        "request_id": request_id,
        "token_ids": token_ids,
        "features": NO_FEATURES,
        "sampling_params": _sampling_fields(sampling, fields),
        "model": model,
        "stream": bool(fields.stream),
        "stream_options": fields.stream_options and fields.stream_options.essentials(),
        "cache_salt": fields.cache_salt,
        "priority": fields.priority or 0,
        # what the engine does with the request itself, and would not do with this body
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
