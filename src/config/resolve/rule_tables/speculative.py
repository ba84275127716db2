"""Rules about drafts. The format of a rule: ../rule.py. What drafts do not go with: exclusions.py."""

from __future__ import annotations

from ..rule import Rule

_OTHERS = tuple(
    f"speculative.{name}"
    for name in (
        *("num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"),
        *("max_model_len", "disable_by_batch_size", "past_output_tokens"),
    )
)

RULES = (
    Rule(
        id="R177",
        title="what must agree is at most what is compared",
        fields=("speculative.prompt_lookup_min", "speculative.prompt_lookup_max"),
        is_broken=lambda v: v.speculative.prompt_lookup_min > v.speculative.prompt_lookup_max,
        message=(
            "`speculative.prompt_lookup_min` is {prompt_lookup_min}, of {prompt_lookup_max} tokens that are compared"
        ),
        why="Nothing could ever be drafted.",
        fixes=(
            "set `speculative.prompt_lookup_min` to at most {prompt_lookup_max}",
            "or raise `speculative.prompt_lookup_max`",
        ),
    ),
    Rule(
        id="R516",
        title="drafts are for models without recurrent states",
        fields=("speculative.method",),
        needs_model=True,
        is_broken=lambda v: v.speculative.method is not None and v.has_states,
        message="`speculative.method: {method}` cannot be used with this model, some layers of which keep a state",
        why="A state is of all tokens so far, and those that the model rejects cannot be taken out of it.",
        fixes=("remove `speculative.method`, or write `auto`",),
    ),
    Rule(
        id="R517",
        title="options of drafts need a method",
        fields=("speculative.method", *_OTHERS),
        severity="warning",
        is_broken=lambda v: v.speculative.method is None and any(map(v.is_written, _OTHERS)),
        message="without `speculative.method` nothing is drafted, so the other options of `speculative` have no effect",
        why="Drafts are off by default, and `auto` is none where this build does not draft.",
        fixes=("set `speculative.method: ngram`, or remove the other options",),
    ),
)
