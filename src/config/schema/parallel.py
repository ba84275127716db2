"""Section `parallel`: one model on several devices, several replicas of one model."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .section import Section, about
from .types import Count, Flag, Whole

ONE_DEVICE = "this build computes on one device; run a server per device behind a load balancer"
NO_EXPERTS = "this build places no experts, since it runs no mixture-of-experts models"
NO_REPLICAS = "a server of this build is one replica; run several behind a load balancer"


class ParallelConfig(Section):
    """How a model is spread over devices. This build computes on one."""

    distributed_executor_backend: Literal["auto", "uni", "mp", "ray", "external_launcher"] = Field(
        "auto",
        description="How workers are started and controlled. `auto` and `uni`: one worker, inside the engine process.",
        examples=["uni"],
        json_schema_extra=about(reload="process", devices=(), same=("uni",), refused=ONE_DEVICE),
    )
    pipeline_parallel_size: Count = Field(
        1,
        description="Stages of layers on different devices. Fits larger models at the price of bubbles.",
        examples=[2],
        json_schema_extra=about(reload="process", devices=(), aliases=("-pp",), unit="stages", refused=ONE_DEVICE),
    )
    tensor_parallel_size: Count = Field(
        1,
        description=(
            "Devices that each weight matrix is split over. Fits larger models and computes a layer faster; every "
            "layer then waits for all of them."
        ),
        examples=[2],
        json_schema_extra=about(reload="process", devices=(), aliases=("-tp",), unit="devices", refused=ONE_DEVICE),
    )
    decode_context_parallel_size: Count = Field(
        1,
        description=(
            "Devices of a tensor-parallel group that share the KV cache of each sequence. Must divide "
            "tensor_parallel_size."
        ),
        examples=[2],
        json_schema_extra=about(reload="process", devices=(), aliases=("-dcp",), unit="devices", refused=ONE_DEVICE),
    )
    data_parallel_size: Count = Field(
        1,
        description="Engines that share the load of one address.",
        examples=[2],
        json_schema_extra=about(reload="process", devices=(), aliases=("-dp",), unit="replicas", refused=NO_REPLICAS),
    )
    data_parallel_rank: Whole | None = Field(
        None,
        ge=0,
        description="Be this replica, and leave the balancing to something outside.",
        examples=[0],
        json_schema_extra=about(reload="process", devices=(), aliases=("-dpn",), refused=NO_REPLICAS),
    )
    data_parallel_start_rank: Whole | None = Field(
        None,
        ge=0,
        description="First replica of a further node.",
        examples=[2],
        json_schema_extra=about(reload="process", devices=(), aliases=("-dpr",), refused=NO_REPLICAS),
    )
    data_parallel_size_local: Count | None = Field(
        None,
        description="Replicas on this node.",
        examples=[1],
        json_schema_extra=about(reload="process", devices=(), aliases=("-dpl",), refused=NO_REPLICAS),
    )
    data_parallel_address: str | None = Field(
        None,
        min_length=1,
        description="Address of the node that coordinates the replicas.",
        examples=["10.0.0.1"],
        json_schema_extra=about(reload="process", devices=(), aliases=("-dpa",), refused=NO_REPLICAS),
    )
    data_parallel_rpc_port: Whole | None = Field(
        None,
        ge=1,
        le=65535,
        description="Port for messages between replicas.",
        examples=[13345],
        json_schema_extra=about(reload="process", devices=(), aliases=("-dpp",), refused=NO_REPLICAS),
    )
    data_parallel_backend: Literal["mp", "ray"] = Field(
        "mp",
        description="Replicas as local processes or as actors of Ray.",
        examples=["mp"],
        json_schema_extra=about(reload="process", devices=(), aliases=("-dpb",), refused=NO_REPLICAS),
    )
    data_parallel_hybrid_lb: Flag = Field(
        False,
        description="An API server per node that balances over the replicas of the node.",
        examples=[True],
        json_schema_extra=about(reload="process", devices=(), refused=NO_REPLICAS),
    )
    enable_expert_parallel: Flag = Field(
        False,
        description="Whole experts on different devices in place of slices of each.",
        examples=[True],
        json_schema_extra=about(reload="process", devices=(), refused=NO_EXPERTS),
    )
    enable_dbo: Flag = Field(
        False,
        description="Two micro-batches whose computation and communication overlap.",
        examples=[True],
        json_schema_extra=about(reload="process", devices=(), refused=ONE_DEVICE),
    )
    dbo_decode_token_threshold: Whole = Field(
        32,
        ge=0,
        description="Tokens of a decode batch above which it is split in two.",
        examples=[32],
        json_schema_extra=about(reload="process", devices=(), unit="tokens", refused=ONE_DEVICE),
    )
    dbo_prefill_token_threshold: Whole = Field(
        512,
        ge=0,
        description="Tokens of a batch with prompts above which it is split in two.",
        examples=[512],
        json_schema_extra=about(reload="process", devices=(), unit="tokens", refused=ONE_DEVICE),
    )
    enable_eplb: Flag = Field(
        False,
        description="Move experts between devices to even out their load.",
        examples=[True],
        json_schema_extra=about(reload="process", devices=(), refused=NO_EXPERTS),
    )
    eplb_config: dict[str, Any] = Field(
        {},
        description=(
            "How expert load is measured and evened out: window_size, step_interval, num_redundant_experts, "
            "log_balancedness."
        ),
        examples=[{"window_size": 1000}],
        json_schema_extra=about(reload="process", devices=(), refused=NO_EXPERTS),
    )
    expert_placement_strategy: Literal["linear", "round_robin"] = Field(
        "linear",
        description="Experts on devices in runs or in turns.",
        examples=["linear"],
        json_schema_extra=about(reload="process", devices=(), refused=NO_EXPERTS),
    )
    max_parallel_loading_workers: Count | None = Field(
        None,
        description=(
            "Parts of the weights that are read at the same time; unset, one after the other. More uses fast disks and "
            "network file systems better, and holds that many parts in memory beside the model."
        ),
        examples=[4],
        json_schema_extra=about(reload="model", unit="parts"),
    )
    ray_workers_use_nsight: Flag = Field(
        False,
        description="Start workers under the Nsight profiler.",
        examples=[True],
        json_schema_extra=about(reload="process", devices=(), refused="there are no workers on Ray"),
    )
    disable_custom_all_reduce: Flag = Field(
        False,
        description="Leave reductions over devices to NCCL.",
        examples=[True],
        json_schema_extra=about(reload="process", devices=(), refused=ONE_DEVICE),
    )
    worker_cls: str = Field(
        "auto",
        min_length=1,
        description="Class of the worker of each device.",
        examples=["auto"],
        json_schema_extra=about(reload="process", devices=(), refused="the engine process is the only worker"),
    )
    worker_extension_cls: str = Field(
        "",
        description="Class that is mixed into the worker.",
        examples=[""],
        json_schema_extra=about(reload="process", devices=(), refused="the engine process is the only worker"),
    )
