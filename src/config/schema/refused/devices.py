"""Refused options of several devices, several machines, and the choice of kernels."""

from __future__ import annotations

from typing import Any, Literal

from ..types import Count, Flag, Texts
from .reasons import (
    AGREED,
    FIXED_EXPERTS,
    GATHERED_QUERIES,
    GATHERED_TOKENS,
    GPU_BY_VARIABLE,
    LAUNCHED_EXCHANGES,
    NO_DEVICE_SETTINGS,
    NO_MODES,
    NO_PROMPT_TENSORS,
    ONE_SAMPLER,
    OWN_EXPERTS,
    OWN_KERNELS,
    PARTS_OF_ATTENTION,
    RESTARTED,
    SAME_TOKENS,
)
from .row import Refused

ROWS: tuple[Refused, ...] = (
    # parallel
    Refused(
        "parallel.dcp_comm_backend",
        Literal["ag_rs", "a2a"] | None,
        None,
        PARTS_OF_ATTENTION,
        "How devices exchange parts of attention.",
    ),
    Refused("parallel.dcp_q_replicate", Flag, False, GATHERED_QUERIES, "Compute queries on every device."),
    Refused(
        "parallel.distributed_timeout_seconds",
        Count | None,
        None,
        LAUNCHED_EXCHANGES,
        "Time limit of operations between devices.",
    ),
    Refused(
        "parallel.enable_batch_sharded_sampling", Flag, False, ONE_SAMPLER, "Sample a part of the batch on each device."
    ),
    Refused("parallel.enable_hc_sp", Flag, False, SAME_TOKENS, "Split sequences in hyper-connections."),
    Refused(
        "parallel.enable_shm_tensor_arena",
        Flag,
        False,
        NO_PROMPT_TENSORS,
        "Send large tensors to workers through shared memory.",
    ),
    Refused("parallel.dp_sync_interval", Count, 16, AGREED, "Steps between two agreements of the replicas."),
    Refused("parallel.disable_nccl_for_dp_synchronization", Flag, False, AGREED, "Let replicas agree over Gloo."),
    Refused(
        "parallel.enable_elastic_ep",
        Flag,
        False,
        FIXED_EXPERTS,
        "Change the number of devices with experts at run time.",
    ),
    Refused("parallel.elastic_ep_max_dp_size", Count | None, None, FIXED_EXPERTS, "Maximum number of such devices."),
    Refused(
        "parallel.enable_ep_weight_filter",
        Flag,
        False,
        OWN_EXPERTS,
        "Read only the experts of this device.",
        same=(True,),
    ),
    Refused(
        "parallel.all2all_backend",
        str,
        "allgather_reducescatter",
        GATHERED_TOKENS,
        "How tokens reach experts on other devices.",
    ),
    Refused("parallel.enable_fault_tolerance", Flag, False, RESTARTED, "Continue without a replica that failed."),
    Refused("parallel.fault_tolerance_config", dict[str, Any], {}, RESTARTED, "How failed replicas are handled."),
    # device
    Refused("device.additional_config", dict[str, Any], {}, NO_DEVICE_SETTINGS, "Settings for the device's own code."),
    Refused("device.device_ids", Texts, (), GPU_BY_VARIABLE, "GPUs to use, by number or UUID.", notation="commas"),
    Refused("device.attention_backend", str, "auto", OWN_KERNELS, "Kernels of attention."),
    Refused("device.attention_config", dict[str, Any], {}, OWN_KERNELS, "Settings of attention.", aliases=("-ac",)),
    Refused("device.linear_backend", str, "auto", OWN_KERNELS, "Kernels of matrix products."),
    Refused("device.moe_backend", str, "auto", OWN_KERNELS, "Kernels of experts."),
    Refused("device.sparse_indexer_topk_backend", str, "auto", OWN_KERNELS, "Kernels of sparse attention."),
    Refused("device.gdn_prefill_backend", str | None, None, OWN_KERNELS, "Kernels of gated delta layers."),
    Refused("device.kda_prefill_backend", str, "auto", OWN_KERNELS, "Kernels of delta attention, for prompts."),
    Refused("device.kda_decode_backend", str, "auto", OWN_KERNELS, "Kernels of delta attention, for single tokens."),
    Refused("device.kernel_config", dict[str, Any], {}, OWN_KERNELS, "Settings of kernels."),
    Refused("device.ir_op_priority", dict[str, Any], {}, OWN_KERNELS, "Implementations of operations, in order."),
    Refused("device.monokernel", Flag, False, OWN_KERNELS, "Compute a layer in one kernel."),
    Refused(
        "device.enable_flashinfer_autotune", Flag, False, OWN_KERNELS, "Measure kernels of FlashInfer at the start."
    ),
    Refused(
        "device.performance_mode",
        Literal["balanced", "interactivity", "throughput"],
        "balanced",
        NO_MODES,
        "Optimise for latency or for throughput.",
    ),
)
