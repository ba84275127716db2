"""Request fields to SamplingParams: fills in the deployment's defaults and checks the limits of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.api import SamplingParams, check_allowed
from .protocol.errors import ApiError, bad_request, unsupported
from .protocol.fields import SamplingFields
from .text.tokenizer import context_limit, too_long

# Fields whose defaults may come from the deployment's generation_config.
DEFAULTED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """Limits of one sequence."""

    context: int  # tokens, prompt and output together: of the model, or of the KV cache if that holds less
    vocab_size: int
    max_logprobs: int  # per position; -1 is unlimited
    has_tokenizer: bool
    has_priorities: bool
    logits_processor_pattern: str | None = None  # for import paths in requests


def check_prompt(token_ids: list[int], limits: ModelLimits, *, param: str) -> None:
    """Raises ApiError or InvalidRequest: no tokens, no room for an output, or ids outside the vocabulary."""
    if not token_ids:
        raise bad_request("the prompt has no tokens", param=param)
    if len(token_ids) >= limits.context:
        raise too_long(len(token_ids), limits.context, param=param)
    extreme = min(token_ids) if min(token_ids) < 0 else max(token_ids)
    if not 0 <= extreme < limits.vocab_size:
        raise _not_in_vocabulary(extreme, limits, param)


def sampling_params(
    fields: SamplingFields,
    defaults: Mapping[str, Any],
    limits: ModelLimits,
    *,
    prompts: Sequence[list[int]],
    max_tokens: int | None,
    max_tokens_param: str = "max_tokens",
    default_max_tokens: int | None = None,
    logprobs: int | None = None,
    logprobs_param: str = "logprobs",
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """
    defaults: of the deployment, by field name. They also replace null in a request.
    prompts: each fits into the context.
    max_tokens: reduced to the rest of the context.
    default_max_tokens: for requests without max_tokens; None is the rest of the context.

    Raises ApiError with the field that exceeds its limit.
    """
    if max_tokens is not None and max_tokens > limits.context:
        message = f"{context_limit(limits.context)}, but {max_tokens_param} is {max_tokens}"
        raise bad_request(message, code="context_length_exceeded", param=max_tokens_param)
    if max_tokens is None:
        max_tokens = default_max_tokens or defaults.get("max_tokens") or limits.context
    # Of several prompts, the engine ends the longer ones at the end of the context.
    max_tokens = min(max_tokens, limits.context - min(map(len, prompts)))
    min_tokens = fields.min_tokens or 0
    most = min(max_tokens, limits.context - max(map(len, prompts)))
    if min_tokens > most:
        raise bad_request(f"min_tokens is {min_tokens}, but at most {most} can be generated", param="min_tokens")
    _check_logprobs(logprobs, limits, logprobs_param)
    _check_logprobs(prompt_logprobs, limits, "prompt_logprobs")
    processors = tuple(fields.logits_processors or ())
    check_allowed(processors, limits.logits_processor_pattern)
    if fields.stop and not limits.has_tokenizer:
        raise unsupported("stop", ": this deployment has no tokenizer (`model.skip_tokenizer_init`)")
    if fields.priority and not limits.has_priorities:
        raise unsupported("priority", ": this deployment serves in order of arrival; see `scheduler.scheduling_policy`")
    logit_bias = {int(token_id): bias for token_id, bias in (fields.logit_bias or {}).items()}
    for param, token_ids in (("logit_bias", logit_bias), ("stop_token_ids", fields.stop_token_ids or ())):
        for token_id in token_ids:
            if token_id >= limits.vocab_size:
                raise _not_in_vocabulary(token_id, limits, param)
    given = {name: getattr(fields, name) for name in DEFAULTED}
    chosen = {name: defaults.get(name) if value is None else value for name, value in given.items()}
    return SamplingParams(
        **{name: value for name, value in chosen.items() if value is not None},
        n=fields.n or 1,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        logit_bias=logit_bias,
        seed=fields.seed,
        stop=tuple(fields.stop or ()),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
        include_stop_str_in_output=bool(fields.include_stop_str_in_output),
        skip_special_tokens=fields.skip_special_tokens is not False,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        detokenize=limits.has_tokenizer,
        logits_processors=processors,
    )


def _check_logprobs(requested: int | None, limits: ModelLimits, param: str) -> None:
    limit = limits.vocab_size if limits.max_logprobs == -1 else limits.max_logprobs
    if requested is not None and requested > limit:
        message = f"{param} is {requested}, but this deployment returns at most {limit} (`model.max_logprobs`)"
        raise bad_request(message, code="integer_above_max_value", param=param)


def _not_in_vocabulary(token_id: int, limits: ModelLimits, param: str) -> ApiError:
    message = f"token id {token_id} is outside the vocabulary of {limits.vocab_size} tokens"
    return bad_request(message, code="invalid_token_id", param=param)
