"""Rules about positions and the longest sequence. The format of a rule: ../rule.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....model.rope import SCALINGS
from ...exit_codes import EXIT_ENVIRONMENT
from ..rule import Rule
from ..values import Values


def _rope_problem(v: Values) -> str:
    """How hf_overrides contradicts the options on rotary positions; empty if it does not."""
    overrides = v.model.hf_overrides
    newer = overrides.get("rope_parameters")
    newer = newer if isinstance(newer, Mapping) else {}
    theta, scaling = v.config.model.rope_theta, v.config.model.rope_scaling
    for where, value in (("rope_theta", overrides.get("rope_theta")), ("rope_parameters", newer.get("rope_theta"))):
        if theta != "auto" and value is not None and value != theta:
            return f"`{where}` gives the base {value}, `model.rope_theta` gives {theta:g}"
    for where in ("rope_scaling", "rope_parameters"):
        value = overrides.get(where)
        if isinstance(value, Mapping) and any(value.get(key, same) != same for key, same in scaling.items()):
            return f"`{where}` and `model.rope_scaling` differ"
    return ""


def _longrope_length(v: Values) -> int:
    """The longest sequence for which the model's `longrope` has its own factors; 0 without that type."""
    files = v.files
    if files is None or files.spec.attention is None or (rope := files.spec.attention.rope) is None:
        return 0
    trained = rope.original_max_position_embeddings or files.spec.max_position_embeddings
    return trained if rope.kind == "longrope" else 0


def _has_unknown_scaling(scaling: Mapping[str, Any]) -> bool:
    return (scaling.get("rope_type") or scaling.get("type")) not in ("default", *SCALINGS)


RULES: tuple[Rule, ...] = (
    Rule(
        id="R062",
        title="disable_sliding_window needs a window",
        fields=("model.disable_sliding_window",),
        severity="warning",
        needs_model=True,
        is_broken=lambda v: v.model.disable_sliding_window and (v.files is None or v.files.window is None),
        message="`model.disable_sliding_window` has no effect: the model has no sliding window",
        why="The option lets every layer attend to the whole sequence and limits the context to the window.",
        fixes=("remove the option",),
    ),
    Rule(
        id="R498",
        title="longrope has one set of factors",
        fields=("model.max_model_len",),
        severity="warning",
        needs_model=True,
        is_broken=lambda v: 0 < _longrope_length(v) < v.model.max_model_len,
        message=(
            "sequences of up to {longrope_length} tokens are computed with the factors for longer ones, because "
            "`model.max_model_len` is {max_model_len}"
        ),
        why=(
            "The model has other factors of its rotary embedding for sequences that are not longer than its training. "
            "Keys in the cache are shared and stay as they were written, so all sequences have the same factors. "
            "Short answers differ from those of transformers, which chooses by the longest sequence of a batch."
        ),
        said=lambda v: {"longrope_length": _longrope_length(v)},
        fixes=("set `model.max_model_len` to {longrope_length} if no request is longer",),
    ),
    Rule(
        id="R065",
        title="rope_theta is used with rope_scaling",
        fields=("model.rope_theta", "model.rope_scaling"),
        severity="warning",
        is_broken=lambda v: v.is_written("model.rope_theta") and not v.model.rope_scaling,
        message="`model.rope_theta` is {rope_theta} and there is no `model.rope_scaling`",
        why="Another base alone rotates all positions in a way that the model was not trained with.",
        fixes=("add the scaling that the base belongs to, or remove `rope_theta`",),
    ),
    Rule(
        id="R281",
        title="rotary positions are configured once",
        fields=("model.rope_theta", "model.rope_scaling", "model.hf_overrides"),
        is_broken=_rope_problem,
        message="`model.hf_overrides` contradicts the rope options: {problem}",
        why="It is not clear which one applies.",
        fixes=("keep one of the two",),
    ),
    Rule(
        id="R282",
        title="the type of a rope scaling is supported",
        fields=("model.rope_scaling",),
        is_broken=lambda v: bool(v.model.rope_scaling) and _has_unknown_scaling(v.model.rope_scaling),
        message="`model.rope_scaling` must have a `rope_type`: one of {rope_kinds}",
        why="Without a known type the other parameters would have no effect.",
        fixes=("add `rope_type`; `engine explain model.rope_scaling` shows an example",),
    ),
    Rule(
        id="R202",
        title="the KV cache can hold the longest sequence",
        fields=("model.max_model_len", "cache.kv_cache_memory_bytes", "cache.num_gpu_blocks_override"),
        needs_model=True,
        is_broken=lambda v: v.is_kv_written and 0 < v.memory.max_cached_len < v.model.max_model_len,
        message=(
            "one sequence of {max_model_len} tokens needs {one_sequence} of KV cache; it has {kv_cache} "
            "for at most {max_cached_len} tokens"
        ),
        why="Otherwise a request within max_model_len would be accepted and could never finish.",
        fixes=(
            "set `model.max_model_len` to at most {max_cached_len}, or to auto",
            "or give the KV cache at least {one_sequence_exact} with `cache.kv_cache_memory_bytes`",
        ),
    ),
    Rule(
        id="R204",
        title="the weights leave memory for a KV cache",
        fields=("model.model", "model.dtype", "cache.gpu_memory_utilization"),
        needs_model=True,
        about_machine=True,
        exit_code=EXIT_ENVIRONMENT,
        is_broken=lambda v: not v.is_kv_written and v.memory.num_kv_blocks == 0,
        message=(
            "the weights need {weights} in {dtype}{others}; `cache.gpu_memory_utilization` {gpu_memory_utilization} of "
            "the {memory} is {budget}"
        ),
        why="Weights and KV cache share this memory, and without a KV cache nothing can run.",
        fixes=("{smaller_weights}", "{fewer_states}", "choose a smaller model, or free memory on this machine"),
    ),
    Rule(
        id="R205",
        title="max_model_len is within the model's limit",
        fields=("model.max_model_len",),
        needs_model=True,
        is_broken=lambda v: v.model.max_model_len > v.model_limit,
        message="`model.max_model_len` is {max_model_len}; the model supports {model_limit} tokens",
        why="Positions beyond the model's limit give meaningless answers without an error.",
        fixes=(
            "set `model.max_model_len` to at most {model_limit}, or to auto",
            "or, if the model supports more with a rope scaling, raise `hf_overrides.max_position_embeddings`",
        ),
    ),
    Rule(
        id="R206",
        title="the memory of this machine can hold the longest sequence",
        fields=("model.max_model_len", "cache.gpu_memory_utilization"),
        needs_model=True,
        about_machine=True,
        is_broken=lambda v: (
            v.memory.num_kv_blocks > 0 and v.memory.max_cached_len < v.model.max_model_len and not v.is_kv_written
        ),
        message=(
            "one sequence of {max_model_len} tokens needs {one_sequence} of KV cache; after the weights ({weights}"
            "{others}) this machine's budget of {budget} leaves {kv_cache}, for at most {max_cached_len} tokens"
        ),
        why="Otherwise a request within max_model_len would be accepted and could never finish.",
        fixes=(
            "set `model.max_model_len` to at most {max_cached_len}, or to auto",
            "{smaller_weights}",
            "{fewer_states}",
            "or raise `cache.gpu_memory_utilization` or free memory on this machine",
        ),
    ),
    Rule(
        id="R207",
        title="a sequence has room for a prompt and an answer",
        fields=("model.max_model_len",),
        is_broken=lambda v: v.model.max_model_len < 2 and v.is_written("model.max_model_len"),
        message="`model.max_model_len` is {max_model_len}; a prompt and one token of an answer need 2",
        why="No request could be served.",
        fixes=("set `model.max_model_len` to at least 2, or to auto",),
    ),
)
