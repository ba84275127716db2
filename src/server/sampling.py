"""Request fields to SamplingParams: fills in the deployment's defaults and checks the limits of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..beam_search import check_searchable
from ..engine.api import Constraint, Reasoning, SamplingParams, check_allowed
from ..text.length import context_limit, too_long
from ..text.tokenizer import Tokenizer, Truncation
from .protocol.errors import ApiError, bad_request, unsupported
from .protocol.fields import NO_LIMIT, SamplingFields

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


RANDOM_SEED = -1  # as in vLLM and llama.cpp


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """Limits of one sequence."""

    context: int  # tokens, prompt and output together: of the model, or of the KV cache if that holds less
    vocab_size: int
    max_logprobs: int  # per position; -1 is unlimited
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
        raise not_in_vocabulary(extreme, limits, param)


def truncation(fields: SamplingFields, limits: ModelLimits) -> Truncation | None:
    """How a long prompt is cut; None if it is refused. One token of the context remains for the output.

    Raises ApiError for a length beyond the context.
    """
    num_tokens = fields.truncate_prompt_tokens
    if num_tokens is None:
        return None
    if num_tokens > limits.context:
        message = f"{context_limit(limits.context)}, but truncate_prompt_tokens is {num_tokens}"
        raise bad_request(message, code="context_length_exceeded", param="truncate_prompt_tokens")
    largest = limits.context - 1
    return Truncation(largest if num_tokens == -1 else min(num_tokens, largest), fields.truncation_side or "left")


def sampling_params(
    fields: SamplingFields,
    defaults: Mapping[str, Any],
    limits: ModelLimits,
    *,
    prompts: Sequence[list[int]],
    max_tokens: int | None,
    max_tokens_param: str = "max_tokens",
    default_max_tokens: int | None = None,
    n: int | None = None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    tokenizer: Tokenizer | None,
    constraint: Constraint | None = None,
    reasoning: Reasoning | None = None,
) -> SamplingParams:
    """
    defaults: of the deployment, by field name. They also replace null in a request.
    prompts: each fits into the context.
    max_tokens: NO_LIMIT, or reduced to the rest of the context.
    default_max_tokens: for requests without max_tokens; None is the rest of the context.
    n: number of sequences; None for the request's.
    logprobs, prompt_logprobs: as `num_logprobs` returned them.
    constraint: of the answer, as constraints.py made it. reasoning: which comes before the answer.

    Raises ApiError or InvalidRequest with the field that exceeds its limit or is not supported.
    """
    if max_tokens is not None and max_tokens > limits.context:
        message = f"{context_limit(limits.context)}, but `{max_tokens_param}` is {max_tokens}"
        raise bad_request(message, code="context_length_exceeded", param=max_tokens_param)
    if max_tokens == NO_LIMIT:
        max_tokens = limits.context
    elif max_tokens is None:
        max_tokens = default_max_tokens or defaults.get("max_tokens") or limits.context
    # Of several prompts, the engine ends the longer ones at the end of the context.
    max_tokens = min(max_tokens, limits.context - min(map(len, prompts)))
    min_tokens = fields.min_tokens or 0
    most = min(max_tokens, limits.context - max(map(len, prompts)))
    if min_tokens > most:
        raise bad_request(f"min_tokens is {min_tokens}, but at most {most} can be generated", param="min_tokens")
    processors = tuple(fields.logits_processors or ())
    check_allowed(processors, limits.logits_processor_pattern)
    for param in ("stop", "bad_words"):
        if getattr(fields, param) and tokenizer is None:
            raise unsupported(param, ": this deployment has no tokenizer (`model.skip_tokenizer_init`)")
    if fields.priority and not limits.has_priorities:
        raise unsupported("priority", ": this deployment serves in order of arrival; see `scheduler.scheduling_policy`")
    logit_bias = {int(token_id): bias for token_id, bias in (fields.logit_bias or {}).items()}
    listed = {
        "logit_bias": logit_bias,
        "stop_token_ids": fields.stop_token_ids or (),
        "allowed_token_ids": fields.allowed_token_ids or (),
    }
    for param, token_ids in listed.items():
        if (largest := max(token_ids, default=0)) >= limits.vocab_size:
            raise not_in_vocabulary(largest, limits, param)
    if fields.use_beam_search:  # nothing is sampled: recommendations for sampling do not apply
        defaults = {name: value for name, value in defaults.items() if name not in DEFAULTED}
    given = {name: getattr(fields, name) for name in DEFAULTED}
    chosen = {name: defaults.get(name) if value is None else value for name, value in given.items()}
    sampling = SamplingParams(
        **{name: value for name, value in chosen.items() if value is not None},
        n=n or fields.n or 1,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        logit_bias=logit_bias,
        allowed_token_ids=tuple(fields.allowed_token_ids or ()),
        bad_word_ids=tokenizer.word_ids(fields.bad_words) if tokenizer is not None and fields.bad_words else (),
        seed=None if fields.seed == RANDOM_SEED else fields.seed,
        stop=tuple(fields.stop or ()),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
        include_stop_str_in_output=bool(fields.include_stop_str_in_output),
        skip_special_tokens=fields.skip_special_tokens is not False,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        detokenize=tokenizer is not None,
        logits_processors=processors,
        constraint=constraint,
        reasoning=reasoning,
    )
    if fields.use_beam_search:
        check_searchable(sampling)
    return sampling


def num_logprobs(requested: int | None, limits: ModelLimits, param: str) -> int | None:
    """The number of best tokens that a request asks for; its -1 is the whole vocabulary.

    Raises ApiError if that is more than the deployment returns.
    """
    limit = limits.vocab_size if limits.max_logprobs == -1 else limits.max_logprobs
    wanted = limits.vocab_size if requested == -1 else requested
    if wanted is not None and wanted > limit:
        shown = f"-1, which is all {wanted} tokens" if requested == -1 else str(wanted)
        message = f"{param} is {shown}, but this deployment returns at most {limit} (`model.max_logprobs`)"
        raise bad_request(message, code="integer_above_max_value", param=param)
    return wanted


def not_in_vocabulary(token_id: int, limits: ModelLimits, param: str) -> ApiError:
    message = f"token id {token_id} is outside the vocabulary of {limits.vocab_size} tokens"
    return bad_request(message, code="invalid_token_id", param=param)
