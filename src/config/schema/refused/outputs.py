"""Refused options of constrained output, draft tokens, and of the KV cache as seen by other programs."""

from __future__ import annotations

from typing import Any, Literal

from ..types import Count, Flag, HumanInt
from .reasons import BLOCKS_HAVE_NAMES, NO_DRAFTS, REASONING_IN_FORMAT
from .row import Refused

ROWS: tuple[Refused, ...] = (
    # structured_outputs
    Refused(
        "structured_outputs.disable_fallback",
        Flag,
        False,
        "there is one library of grammars, so none is tried after another",
        "Use no other library on failure.",
        same=(True,),
    ),
    Refused(
        "structured_outputs.reasoning_parser_plugin",
        str,
        "",
        REASONING_IN_FORMAT,
        "Python file with further reasoning parsers.",
        aliases=("--reasoning-parser-plugin",),
    ),
    Refused(
        "structured_outputs.reasoning_config",
        dict[str, Any],
        {},
        REASONING_IN_FORMAT,
        "Markers of reasoning.",
        aliases=("--reasoning-config",),
    ),
    # speculative
    Refused(
        "speculative.method",
        Literal["ngram", "draft_model", "eagle", "eagle3", "medusa", "mtp", "suffix"] | None,
        None,
        NO_DRAFTS,
        "How draft tokens are proposed.",
        aliases=("--spec-method",),
    ),
    Refused(
        "speculative.model",
        str | None,
        None,
        NO_DRAFTS,
        "Draft model: a hub id or a directory.",
        aliases=("--spec-model",),
    ),
    Refused(
        "speculative.num_speculative_tokens",
        Count | None,
        None,
        NO_DRAFTS,
        "Number of draft tokens in each step.",
        aliases=("--num-speculative-tokens", "--spec-tokens"),
    ),
    Refused("speculative.quantization", str | None, None, NO_DRAFTS, "Quantisation of the draft model's weights."),
    Refused("speculative.draft_tensor_parallel_size", Count | None, None, NO_DRAFTS, "Devices of the draft model."),
    Refused("speculative.max_model_len", HumanInt | None, None, NO_DRAFTS, "Longest sequence that gets draft tokens."),
    Refused("speculative.disable_by_batch_size", Count | None, None, NO_DRAFTS, "Queued requests that stop drafting."),
    Refused("speculative.prompt_lookup_max", Count | None, None, NO_DRAFTS, "Maximum tokens of a prompt lookup."),
    Refused("speculative.prompt_lookup_min", Count | None, None, NO_DRAFTS, "Minimum tokens of a prompt lookup."),
    # kv_transfer
    Refused("kv_transfer.engine_id", str | None, None, BLOCKS_HAVE_NAMES, "Name of this engine for others."),
    Refused(
        "kv_transfer.kv_buffer_device",
        Literal["cpu", "cuda"],
        "cpu",
        "blocks for other engines are kept in host memory",
        "Where blocks are kept for other engines.",
        same=("cpu",),
    ),
)
