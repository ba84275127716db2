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

ROWS: tuple[Refused, ...] = (
    # cache
    Refused("cache.cpu_offload_params", Texts, (), WHOLE_LAYERS, "Weights that are kept in host memory, by name."),
    Refused(
        "cache.offload_backend",
        Literal["auto", "uva", "prefetch"],
        "auto",
        WHOLE_LAYERS,
        "How weights in host memory reach the device.",
    ),
    Refused("cache.offload_group_size", Whole, 0, WHOLE_LAYERS, "Layers of one group of offloaded layers."),
    Refused("cache.offload_num_in_group", Count, 1, WHOLE_LAYERS, "Layers of a group that are offloaded."),
    Refused("cache.offload_params", Texts, (), WHOLE_LAYERS, "Weights of offloaded layers, by name."),
    Refused("cache.kv_cache_dtype_skip_layers", Texts, (), ONE_KV_LAYOUT, "Layers whose KV cache is not quantised."),
    Refused("cache.prefix_match_unit", Count | None, None, WHOLE_BLOCKS, "Tokens after which a shared prefix may end."),
    Refused("cache.swa_bounded_replay", Flag, True, ONE_KV_LAYOUT, "Compute sliding windows again after a prefix hit."),
    Refused("cache.mamba_backend", str, "triton", NO_STATE_SPACE, "Kernels of Mamba layers."),
    Refused("cache.mamba_ssu_algorithm", str | None, None, NO_STATE_SPACE, "Algorithm of the state update."),
    Refused("cache.mamba_block_size", Count | None, None, NO_STATE_SPACE, "Tokens of one block of the Mamba cache."),
    Refused(
        "cache.mamba_cache_mode",
        Literal["none", "align", "all"],
        "none",
        NO_STATE_SPACE,
        "Which states of Mamba layers are kept for later requests.",
    ),
    Refused(
        "cache.enable_mamba_cache_stochastic_rounding",
        Flag,
        False,
        NO_STATE_SPACE,
        "Round states of Mamba layers at random.",
    ),
    Refused("cache.mamba_cache_philox_rounds", Whole, 0, NO_STATE_SPACE, "Rounds of the generator for that rounding."),
    Refused(
        "cache.enable_mamba_shared_prefix_checkpoint",
        Flag,
        False,
        NO_STATE_SPACE,
        "Keep the state of Mamba layers where shared prefixes end.",
    ),
    Refused("cache.use_replayssm", Flag, False, NO_STATE_SPACE, "Store inputs of Mamba layers instead of states."),
    Refused("cache.replayssm_buffer_len", Count, 16, NO_STATE_SPACE, "Number of stored inputs of Mamba layers."),
    # scheduler
    Refused("scheduler.num_lookahead_slots", Whole, 0, SLOTS_AS_NEEDED, "KV slots reserved for unverified tokens."),
    Refused("scheduler.disable_chunked_mm_input", Flag, False, TEXT_ONLY, "Never split a media item over two steps."),
    Refused(
        "scheduler.scheduler_reserve_full_isl",
        Flag,
        True,
        WHOLE_PROMPT_FITS,
        "Admit a request only when the KV cache has room for its whole prompt.",
    ),
    Refused(
        "scheduler.watermark",
        NumberFromZero,
        0.0,
        SLOTS_AS_NEEDED,
        "Share of the KV cache that is kept free when a request is admitted.",
    ),
    Refused(
        "scheduler.max_num_active_seqs",
        Count | None,
        None,
        "`scheduler.max_num_seqs` is the maximum of running sequences",
        "Maximum number of running sequences, below the number that memory is reserved for.",
    ),
    Refused(
        "scheduler.max_num_scheduled_tokens",
        HumanInt | None,
        None,
        "`scheduler.max_num_batched_tokens` is the maximum of a step",
        "Maximum number of tokens of a step, below the number that memory is reserved for.",
    ),
    Refused(
        "scheduler.prefill_schedule_interval",
        Count,
        1,
        "prompts may be part of every step; `scheduler.max_prefill_share` limits them",
        "Steps between two steps that compute prompts.",
    ),
    Refused(
        "scheduler.long_prefill_token_threshold_adaptive",
        Flag,
        False,
        "`scheduler.long_prefill_token_threshold` is one number for every step",
        "Raise the threshold of long prompts while few requests wait.",
    ),
    Refused(
        "scheduler.stream_interval",
        Count,
        1,
        "every token is streamed at once; tokens that a slow client has not read are merged into one event",
        "Number of tokens that are sent together in a stream.",
    ),
)
