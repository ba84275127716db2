"""Refused options of constrained output, draft tokens, and of the KV cache as seen by other programs."""

from __future__ import annotations

from typing import Any, Literal

from ..types import Count, Flag, HumanInt
from .reasons import BLOCKS_HAVE_NAMES, NO_DRAFTS, REASONING_IN_FORMAT
from .row import Refused

STRUCTURED_OUTPUTS: tuple[Refused, ...] = (
    Refused(
        "disable_fallback",
        Flag,
        False,
        "Use no other library on failure.",
        reason="there is one library of grammars, so none is tried after another",
        same=(True,),
    ),
    Refused(
        "reasoning_parser_plugin",
        str,
        "",
        "Python file with further reasoning parsers.",
        reason=REASONING_IN_FORMAT,
        aliases=("--reasoning-parser-plugin",),
    ),
    Refused(
        "reasoning_config",
        dict[str, Any],
        {},
        "Markers of reasoning.",
        reason=REASONING_IN_FORMAT,
        aliases=("--reasoning-config",),
    ),
)
SPECULATIVE: tuple[Refused, ...] = (
    Refused(
        "method",
        Literal["ngram", "draft_model", "eagle", "eagle3", "medusa", "mtp", "suffix"] | None,
        None,
        "How draft tokens are proposed.",
        reason=NO_DRAFTS,
        aliases=("--spec-method",),
    ),
    Refused(
        "model",
        str | None,
        None,
        "Draft model: a hub id or a directory.",
        reason=NO_DRAFTS,
        aliases=("--spec-model",),
    ),
    Refused(
        "num_speculative_tokens",
        Count | None,
        None,
        "Number of draft tokens in each step.",
        reason=NO_DRAFTS,
        aliases=("--num-speculative-tokens", "--spec-tokens"),
    ),
    Refused("quantization", str | None, None, "Quantisation of the draft model's weights.", reason=NO_DRAFTS),
    Refused("draft_tensor_parallel_size", Count | None, None, "Devices of the draft model.", reason=NO_DRAFTS),
    Refused("max_model_len", HumanInt | None, None, "Longest sequence that gets draft tokens.", reason=NO_DRAFTS),
    Refused("disable_by_batch_size", Count | None, None, "Queued requests that stop drafting.", reason=NO_DRAFTS),
    Refused("prompt_lookup_max", Count | None, None, "Maximum tokens of a prompt lookup.", reason=NO_DRAFTS),
    Refused("prompt_lookup_min", Count | None, None, "Minimum tokens of a prompt lookup.", reason=NO_DRAFTS),
)
KV_TRANSFER: tuple[Refused, ...] = (
    Refused("engine_id", str | None, None, "Name of this engine for others.", reason=BLOCKS_HAVE_NAMES),
    Refused(
        "kv_buffer_device",
        Literal["cpu", "cuda"],
        "cpu",
        "Where blocks are kept for other engines.",
        reason="blocks for other engines are kept in host memory",
        same=("cpu",),
    ),
)
