"""Rules about drafts. The format of a rule: ../rule.py. What drafts do not go with: exclusions.py."""

from __future__ import annotations

from ..draft_files import MODEL_METHODS
from ..rule import Rule

_OF_NGRAM = tuple(f"speculative.{name}" for name in ("prompt_lookup_max", "prompt_lookup_min", "past_output_tokens"))
_OF_A_FOLDER = ("draft_model", "eagle", "eagle3", "dflash")
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
        id="R517",
        title="options of drafts need a method",
        fields=("speculative.method", *_OTHERS),
        severity="warning",
        is_broken=lambda v: v.speculative.method is None and any(map(v.is_written, _OTHERS)),
        message="without `speculative.method` nothing is drafted, so the other options of `speculative` have no effect",
        why="Drafts are off by default, and `auto` is none where this build does not draft.",
        fixes=("set `speculative.method: ngram`, or remove the other options",),
    ),
    Rule(
        id="R522",
        title="options of looking texts up are for ngram",
        fields=("speculative.method", *_OF_NGRAM),
        severity="warning",
        is_broken=lambda v: v.speculative.method in MODEL_METHODS and any(map(v.is_written, _OF_NGRAM)),
        message="with `speculative.method: {method}` nothing is looked up, so the options of `ngram` have no effect",
        why="A network drafts what it computes, and not what a text says.",
        fixes=("set `speculative.method: ngram`, or remove them",),
    ),
    Rule(
        id="R518",
        title="what drafts is named",
        fields=("speculative.method", "speculative.model"),
        is_broken=lambda v: v.speculative.method in _OF_A_FOLDER and v.speculative.model is None,
        message="`speculative.method: {method}` drafts with what `speculative.model` names, which is missing",
        why="The model's own checkpoint has no second model, and no layers of EAGLE or DFlash.",
        fixes=("set `speculative.model` to a folder or a hub id", "or set `speculative.method: ngram`"),
    ),
    Rule(
        id="R519",
        title="what drafts is used",
        fields=("speculative.model", "speculative.method"),
        needs_model=True,
        is_broken=lambda v: v.speculative.model is not None and v.speculative.method not in _OF_A_FOLDER,
        message="`speculative.model: {model}` drafts nothing with `speculative.method: {method}`",
        why=(
            "Other methods draft from the text of a request or with a layer of the model's own checkpoint, and modules "
            "of the transformers library get no drafts of a network."
        ),
        fixes=("remove `speculative.model`", "or set `speculative.method: draft_model`, `eagle`, `eagle3` or `dflash`"),
    ),
    Rule(
        id="R525",
        title="another vocabulary is that of a draft model",
        fields=("speculative.use_heterogeneous_vocab", "speculative.method"),
        severity="warning",
        is_broken=lambda v: v.speculative.use_heterogeneous_vocab and v.speculative.method != "draft_model",
        message="`speculative.use_heterogeneous_vocab` has no effect with `speculative.method: {method}`",
        why="Other methods draft tokens of the model.",
        fixes=("remove it", "or set `speculative.method: draft_model`"),
    ),
    Rule(
        id="R526",
        title="drafts in one pass are for networks with a mask",
        fields=("speculative.parallel_drafting", "speculative.method"),
        severity="warning",
        is_broken=lambda v: (
            v.speculative.parallel_drafting is True and v.speculative.method not in ("draft_model", "eagle3")
        ),
        message="`speculative.parallel_drafting` has no effect with `speculative.method: {method}`",
        why="Only draft models and layers of EAGLE-3 are trained with a mask for the tokens that are not known.",
        fixes=("remove it", "or set `speculative.method: draft_model` or `eagle3`"),
    ),
    Rule(
        id="R541",
        title="drafts need a model that generates",
        fields=("speculative.method",),
        needs_model=True,
        is_broken=lambda v: bool(v.speculative.method) and v.files is not None and not v.files.spec.generates,
        message="`speculative.method` is {method}, and the model generates no tokens",
        why="Drafts are guesses of the next tokens of an answer.",
        fixes=("remove `speculative.method`",),
    ),
    Rule(
        id="R521",
        title="networks draft for models of this build",
        fields=("speculative.method", "model.model_impl"),
        needs_model=True,
        is_broken=lambda v: v.speculative.method == "mtp" and v.files is not None and v.files.draft is None,
        message="`speculative.method: mtp` cannot be used with a model that runs through the transformers library",
        why="A network goes on from hidden states, which this build reads from its own layers only.",
        fixes=("set `speculative.method: ngram`", "or `model.model_impl: native`, if this build has the model"),
    ),
)
