"""Rules about draft tokens. How a rule is written: ../rule.py."""

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
        "Each old option is put into `speculative` with a warning (C123), or dropped with one if nothing "
        "stands for it.",
    ),
    StatedRule(
        "R176",
        "a drafter needs a number of tokens",
        ("speculative.model", "speculative.num_speculative_tokens"),
        "Cannot occur: drafting is refused.",
    ),
    StatedRule(
        "R177",
        "the shortest look-up is not longer than the longest",
        ("speculative.prompt_lookup_max", "speculative.prompt_lookup_min"),
        "Cannot occur: drafting is refused.",
    ),
    StatedRule(
        "R178",
        "a drafting model uses one device or as many as the model",
        ("speculative.draft_tensor_parallel_size", "parallel.tensor_parallel_size"),
        "Cannot occur: drafting is refused.",
    ),
    StatedRule(
        "R179",
        "long sequences go on without drafts",
        ("speculative.max_model_len",),
        "Cannot occur: drafting is refused.",
    ),
    StatedRule(
        "R180",
        "a long queue stops drafting for new requests",
        ("speculative.disable_by_batch_size",),
        "Cannot occur: drafting is refused.",
    ),
    StatedRule(
        "R181",
        "two numbers belong to the typicality test",
        (
            "speculative.spec_decoding_acceptance_method",
            "speculative.typical_acceptance_sampler_posterior_threshold",
            "speculative.typical_acceptance_sampler_posterior_alpha",
        ),
        "The test itself is an error here, because it changes answers; its numbers are dropped with a warning.",
    ),
    StatedRule(
        "R182",
        "log-probabilities while drafting",
        ("speculative.disable_logprobs_during_spec_decoding",),
        "Other systems withhold them; here they are always there, and the old option is dropped with a warning.",
    ),
    StatedRule(
        "R183",
        "the drafting model brings its own quantisation",
        ("speculative.speculative_model_quantization", "speculative.quantization", "model.quantization"),
        "Cannot occur: drafting is refused.",
    ),
)
