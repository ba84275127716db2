"""Rules about draft tokens. The format of a rule: ../rule.py."""

from __future__ import annotations

from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = ()

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R175",
        "single options became one section",
        (
            "speculative.speculative_model",
            "speculative.speculative_model_quantization",
            "speculative.num_speculative_tokens",
            "speculative.speculative_disable_mqa_scorer",
            "speculative.speculative_draft_tensor_parallel_size",
            "speculative.speculative_max_model_len",
            "speculative.speculative_disable_by_batch_size",
            "speculative.ngram_prompt_lookup_max",
            "speculative.ngram_prompt_lookup_min",
            "speculative.spec_decoding_acceptance_method",
            "speculative.typical_acceptance_sampler_posterior_threshold",
            "speculative.typical_acceptance_sampler_posterior_alpha",
            "speculative.disable_logprobs_during_spec_decoding",
        ),
        "Each old option is mapped onto an option of `speculative` with a warning (C123), or ignored with one if there "
        "is no counterpart.",
    ),
    StatedRule(
        "R176",
        "a draft model needs a number of tokens",
        ("speculative.model", "speculative.num_speculative_tokens"),
        "Cannot occur: draft tokens are refused.",
    ),
    StatedRule(
        "R177",
        "the minimum of a lookup is at most its maximum",
        ("speculative.prompt_lookup_max", "speculative.prompt_lookup_min"),
        "Cannot occur: draft tokens are refused.",
    ),
    StatedRule(
        "R178",
        "a draft model uses one device or the same number as the model",
        ("speculative.draft_tensor_parallel_size", "parallel.tensor_parallel_size"),
        "Cannot occur: draft tokens are refused.",
    ),
    StatedRule(
        "R179",
        "long sequences get no draft tokens",
        ("speculative.max_model_len",),
        "Cannot occur: draft tokens are refused.",
    ),
    StatedRule(
        "R180",
        "a long queue disables draft tokens for new requests",
        ("speculative.disable_by_batch_size",),
        "Cannot occur: draft tokens are refused.",
    ),
    StatedRule(
        "R181",
        "two options belong to the typicality test",
        (
            "speculative.spec_decoding_acceptance_method",
            "speculative.typical_acceptance_sampler_posterior_threshold",
            "speculative.typical_acceptance_sampler_posterior_alpha",
        ),
        "The test is an error here, because it changes answers; its options are ignored with a warning.",
    ),
    StatedRule(
        "R182",
        "log-probabilities while drafting",
        ("speculative.disable_logprobs_during_spec_decoding",),
        "Other engines omit them; here they are always returned, and the old option is ignored with a warning.",
    ),
    StatedRule(
        "R183",
        "the draft model has its own quantisation",
        ("speculative.speculative_model_quantization", "speculative.quantization", "model.quantization"),
        "Cannot occur: draft tokens are refused.",
    ),
)
