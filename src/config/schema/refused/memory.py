"""Refused options of the KV cache, of weights outside the device, and of the scheduler."""

from __future__ import annotations

from typing import Literal

from ..types import Count, Flag, HumanInt, NumberFromZero, Texts, Whole
from .reasons import (
    NO_STATE_SPACE,
    ONE_KV_LAYOUT,
    SLOTS_AS_NEEDED,
    TEXT_ONLY,
    WHOLE_BLOCKS,
    WHOLE_LAYERS,
    WHOLE_PROMPT_FITS,
)
from .row import Refused

CACHE: tuple[Refused, ...] = (
    Refused("cpu_offload_params", Texts, (), "Weights that are kept in host memory, by name.", reason=WHOLE_LAYERS),
    Refused(
        "offload_backend",
        Literal["auto", "uva", "prefetch"],
        "auto",
        "How weights in host memory reach the device.",
        reason=WHOLE_LAYERS,
    ),
    Refused("offload_group_size", Whole, 0, "Layers of one group of offloaded layers.", reason=WHOLE_LAYERS),
    Refused("offload_num_in_group", Count, 1, "Layers of a group that are offloaded.", reason=WHOLE_LAYERS),
    Refused("offload_params", Texts, (), "Weights of offloaded layers, by name.", reason=WHOLE_LAYERS),
    Refused("kv_cache_dtype_skip_layers", Texts, (), "Layers whose KV cache is not quantised.", reason=ONE_KV_LAYOUT),
    Refused(
        "prefix_match_unit", Count | None, None, "Tokens after which a shared prefix may end.", reason=WHOLE_BLOCKS
    ),
    Refused(
        "swa_bounded_replay", Flag, True, "Compute sliding windows again after a prefix hit.", reason=ONE_KV_LAYOUT
    ),
    Refused("mamba_backend", str, "triton", "Kernels of Mamba layers.", reason=NO_STATE_SPACE),
    Refused("mamba_ssu_algorithm", str | None, None, "Algorithm of the state update.", reason=NO_STATE_SPACE),
    Refused("mamba_block_size", Count | None, None, "Tokens of one block of the Mamba cache.", reason=NO_STATE_SPACE),
    Refused(
        "mamba_cache_mode",
        Literal["none", "align", "all"],
        "none",
        "Which states of Mamba layers are kept for later requests.",
        reason=NO_STATE_SPACE,
    ),
    Refused(
        "enable_mamba_cache_stochastic_rounding",
        Flag,
        False,
        "Round states of Mamba layers at random.",
        reason=NO_STATE_SPACE,
    ),
    Refused("mamba_cache_philox_rounds", Whole, 0, "Rounds of the generator for that rounding.", reason=NO_STATE_SPACE),
    Refused(
        "enable_mamba_shared_prefix_checkpoint",
        Flag,
        False,
        "Keep the state of Mamba layers where shared prefixes end.",
        reason=NO_STATE_SPACE,
    ),
    Refused("use_replayssm", Flag, False, "Store inputs of Mamba layers instead of states.", reason=NO_STATE_SPACE),
    Refused("replayssm_buffer_len", Count, 16, "Number of stored inputs of Mamba layers.", reason=NO_STATE_SPACE),
)
SCHEDULER: tuple[Refused, ...] = (
    Refused("num_lookahead_slots", Whole, 0, "KV slots reserved for unverified tokens.", reason=SLOTS_AS_NEEDED),
    Refused("disable_chunked_mm_input", Flag, False, "Never split a media item over two steps.", reason=TEXT_ONLY),
    Refused(
        "scheduler_reserve_full_isl",
        Flag,
        True,
        "Admit a request only when the KV cache has room for its whole prompt.",
        reason=WHOLE_PROMPT_FITS,
    ),
    Refused(
        "watermark",
        NumberFromZero,
        0.0,
        "Share of the KV cache that is kept free when a request is admitted.",
        reason=SLOTS_AS_NEEDED,
    ),
    Refused(
        "max_num_active_seqs",
        Count | None,
        None,
        "Maximum number of running sequences, below the number that memory is reserved for.",
        reason="`scheduler.max_num_seqs` is the maximum of running sequences",
    ),
    Refused(
        "max_num_scheduled_tokens",
        HumanInt | None,
        None,
        "Maximum number of tokens of a step, below the number that memory is reserved for.",
        reason="`scheduler.max_num_batched_tokens` is the maximum of a step",
    ),
    Refused(
        "prefill_schedule_interval",
        Count,
        1,
        "Steps between two steps that compute prompts.",
        reason="prompts may be part of every step; `scheduler.max_prefill_share` limits them",
    ),
    Refused(
        "long_prefill_token_threshold_adaptive",
        Flag,
        False,
        "Raise the threshold of long prompts while few requests wait.",
        reason="`scheduler.long_prefill_token_threshold` is one number for every step",
    ),
    Refused(
        "stream_interval",
        Count,
        1,
        "Number of tokens that are sent together in a stream.",
        reason="every token is streamed at once; tokens that a slow client has not read are merged into one event",
    ),
)
