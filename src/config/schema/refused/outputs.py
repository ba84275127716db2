"""Refused options of constrained output, draft tokens, and of the KV cache as seen by other programs."""

from __future__ import annotations

from typing import Any, Literal

from ..types import Count, Flag
from .reasons import BLOCKS_HAVE_NAMES, DRAFTS_ALONE, DRAFTS_AS_MODEL, REASONING_IN_FORMAT
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
    Refused("quantization", str | None, None, "Quantisation of the draft model's weights.", reason=DRAFTS_AS_MODEL),
    Refused("draft_tensor_parallel_size", Count | None, None, "Devices of the draft model.", reason=DRAFTS_ALONE),
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
