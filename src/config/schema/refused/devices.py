"""Refused options of several devices, several machines, and the choice of kernels."""

from __future__ import annotations

from typing import Any, Literal

from ..types import Count, Flag, NumberFromZero, Texts, Whole
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
    SUPERVISED,
)
from .row import Refused

PARALLEL: tuple[Refused, ...] = (
    Refused(
        "dcp_comm_backend",
        Literal["ag_rs", "a2a"] | None,
        None,
        "How devices exchange parts of attention.",
        reason=PARTS_OF_ATTENTION,
    ),
    Refused("dcp_q_replicate", Flag, False, "Compute queries on every device.", reason=GATHERED_QUERIES),
    Refused(
        "distributed_timeout_seconds",
        Count | None,
        None,
        "Time limit of operations between devices.",
        reason=LAUNCHED_EXCHANGES,
    ),
    Refused(
        "enable_batch_sharded_sampling", Flag, False, "Sample a part of the batch on each device.", reason=ONE_SAMPLER
    ),
    Refused("enable_hc_sp", Flag, False, "Split sequences in hyper-connections.", reason=SAME_TOKENS),
    Refused(
        "enable_shm_tensor_arena",
        Flag,
        False,
        "Send large tensors to workers through shared memory.",
        reason=NO_PROMPT_TENSORS,
    ),
    Refused("dp_sync_interval", Count, 16, "Steps between two agreements of the replicas.", reason=AGREED),
    Refused("disable_nccl_for_dp_synchronization", Flag, False, "Let replicas agree over Gloo.", reason=AGREED),
    Refused(
        "enable_elastic_ep",
        Flag,
        False,
        "Change the number of devices with experts at run time.",
        reason=FIXED_EXPERTS,
    ),
    Refused("elastic_ep_max_dp_size", Count | None, None, "Maximum number of such devices.", reason=FIXED_EXPERTS),
    Refused(
        "enable_ep_weight_filter",
        Flag,
        False,
        "Read only the experts of this device.",
        reason=OWN_EXPERTS,
        same=(True,),
    ),
    Refused(
        "all2all_backend",
        str,
        "allgather_reducescatter",
        "How tokens reach experts on other devices.",
        reason=GATHERED_TOKENS,
    ),
    Refused("enable_fault_tolerance", Flag, False, "Continue without a replica that failed.", reason=RESTARTED),
    Refused("fault_tolerance_config", dict[str, Any], {}, "How failed replicas are handled.", reason=RESTARTED),
    Refused(
        "data_parallel_multi_port_external_lb",
        Flag,
        False,
        "Start a server for each replica, on ports in succession, under a supervisor.",
        reason=SUPERVISED,
        aliases=("-dpm",),
    ),
    Refused("data_parallel_supervisor_port", Whole, 9256, "Port of the health of all servers.", reason=SUPERVISED),
    Refused(
        "dp_supervisor_probe_interval_s",
        NumberFromZero,
        5.0,
        "Seconds between two probes of a server.",
        reason=SUPERVISED,
    ),
    Refused(
        "dp_supervisor_probe_timeout_s",
        NumberFromZero,
        5.0,
        "Seconds that a server has to answer a probe.",
        reason=SUPERVISED,
    ),
    Refused(
        "dp_supervisor_probe_failure_threshold",
        Count,
        3,
        "Failed probes after which a server is replaced.",
        reason=SUPERVISED,
    ),
)
DEVICE: tuple[Refused, ...] = (
    Refused("additional_config", dict[str, Any], {}, "Settings for the device's own code.", reason=NO_DEVICE_SETTINGS),
    Refused("device_ids", Texts, (), "GPUs to use, by number or UUID.", reason=GPU_BY_VARIABLE, notation="commas"),
    Refused("attention_backend", str, "auto", "Kernels of attention.", reason=OWN_KERNELS),
    Refused("attention_config", dict[str, Any], {}, "Settings of attention.", reason=OWN_KERNELS, aliases=("-ac",)),
    Refused("linear_backend", str, "auto", "Kernels of matrix products.", reason=OWN_KERNELS),
    Refused("moe_backend", str, "auto", "Kernels of experts.", reason=OWN_KERNELS),
    Refused("sparse_indexer_topk_backend", str, "auto", "Kernels of sparse attention.", reason=OWN_KERNELS),
    Refused("gdn_prefill_backend", str | None, None, "Kernels of gated delta layers.", reason=OWN_KERNELS),
    Refused("kda_prefill_backend", str, "auto", "Kernels of delta attention, for prompts.", reason=OWN_KERNELS),
    Refused("kda_decode_backend", str, "auto", "Kernels of delta attention, for single tokens.", reason=OWN_KERNELS),
    Refused("kernel_config", dict[str, Any], {}, "Settings of kernels.", reason=OWN_KERNELS),
    Refused("ir_op_priority", dict[str, Any], {}, "Implementations of operations, in order.", reason=OWN_KERNELS),
    Refused("monokernel", Flag, False, "Compute a layer in one kernel.", reason=OWN_KERNELS),
    Refused(
        "enable_flashinfer_autotune", Flag, False, "Measure kernels of FlashInfer at the start.", reason=OWN_KERNELS
    ),
    Refused(
        "performance_mode",
        Literal["balanced", "interactivity", "throughput"],
        "balanced",
        "Optimise for latency or for throughput.",
        reason=NO_MODES,
    ),
)
