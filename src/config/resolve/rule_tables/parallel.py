"""Rules about several devices and several replicas. The format of a rule: ../rule.py."""

from __future__ import annotations

from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = ()

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R132",
        "the number of workers is tensor-parallel times pipeline-parallel size",
        ("parallel.distributed_executor_backend", "parallel.tensor_parallel_size", "parallel.pipeline_parallel_size"),
        "Both sizes are 1 in this build, so there is one worker, in the engine process.",
    ),
    StatedRule(
        "R133",
        "only one executor supports TPUs",
        ("parallel.distributed_executor_backend",),
        "Cannot occur: this build does not support TPUs.",
    ),
    StatedRule(
        "R134",
        "tensor_parallel_size is a multiple of decode_context_parallel_size",
        ("parallel.decode_context_parallel_size", "parallel.tensor_parallel_size"),
        "Cannot occur: both are 1 in this build.",
    ),
    StatedRule(
        "R135",
        "experts are spread over tensor-parallel times data-parallel devices",
        ("parallel.data_parallel_size", "parallel.tensor_parallel_size"),
        "Cannot occur: this build runs no mixture-of-experts models on several devices.",
    ),
    StatedRule(
        "R136",
        "a rank means external load balancing",
        ("parallel.data_parallel_rank", "parallel.data_parallel_size"),
        "A server of this build is always one replica behind a load balancer, so no rank is set.",
    ),
    StatedRule(
        "R137",
        "a rank is below data_parallel_size",
        ("parallel.data_parallel_rank", "parallel.data_parallel_size"),
        "Cannot occur: ranks are refused.",
    ),
    StatedRule(
        "R138",
        "hybrid load balancing needs a first rank",
        ("parallel.data_parallel_hybrid_lb", "parallel.data_parallel_start_rank", "parallel.data_parallel_size"),
        "Cannot occur: hybrid load balancing is refused.",
    ),
    StatedRule(
        "R139",
        "load balancing is external or hybrid, not both",
        ("parallel.data_parallel_rank", "parallel.data_parallel_hybrid_lb"),
        "Cannot occur: both are refused.",
    ),
    StatedRule(
        "R140",
        "a node has at most all replicas",
        ("parallel.data_parallel_size_local", "parallel.data_parallel_size"),
        "Cannot occur: there is one replica.",
    ),
    StatedRule(
        "R141",
        "expert parallelism replaces tensor parallelism of experts",
        ("parallel.enable_expert_parallel",),
        "Cannot occur: this build places no experts.",
    ),
    StatedRule(
        "R142",
        "expert load balancing needs expert parallelism",
        (
            "parallel.enable_eplb",
            "parallel.enable_expert_parallel",
            "parallel.tensor_parallel_size",
            "parallel.data_parallel_size",
        ),
        "Cannot occur: all four are at their defaults in this build.",
    ),
    StatedRule(
        "R143",
        "redundant experts need expert load balancing",
        ("parallel.eplb_config", "parallel.enable_eplb", "parallel.num_redundant_experts"),
        "Cannot occur: a written eplb_config is refused, and so is the old option that becomes a part of it.",
    ),
    StatedRule(
        "R144",
        "four old options are keys of eplb_config",
        (
            "parallel.num_redundant_experts",
            "parallel.eplb_window_size",
            "parallel.eplb_step_interval",
            "parallel.eplb_log_balancedness",
            "parallel.eplb_config",
        ),
        "Each is mapped onto its key with a warning (C123); a key with different values in both places is an error "
        "(C124).",
    ),
    StatedRule(
        "R145",
        "experts are placed linearly or round-robin",
        ("parallel.expert_placement_strategy", "parallel.eplb_config"),
        "Cannot occur: this build places no experts. With 4 experts on 2 devices, linear would give {0,1} and "
        "{2,3}, round_robin {0,2} and {1,3}.",
    ),
    StatedRule(
        "R146",
        "thresholds of micro-batches need enable_dbo",
        ("parallel.dbo_decode_token_threshold", "parallel.dbo_prefill_token_threshold", "parallel.enable_dbo"),
        "Cannot occur: enable_dbo and other thresholds than the defaults are refused, so they cannot be set without "
        "an effect.",
    ),
    StatedRule(
        "R147",
        "parallel loading applies to files",
        ("parallel.max_parallel_loading_workers", "parallel.tensor_parallel_size"),
        "In other engines it limits the workers of several devices; with one device it is the number of weight files "
        "that are read at the same time.",
    ),
    StatedRule(
        "R148",
        "a profiler of Ray workers needs Ray",
        ("parallel.ray_workers_use_nsight", "parallel.distributed_executor_backend"),
        "Cannot occur: both are refused.",
    ),
    StatedRule(
        "R149",
        "worker_use_ray selects an executor",
        ("parallel.worker_use_ray", "parallel.distributed_executor_backend"),
        "The old option becomes `distributed_executor_backend: ray`, which this build refuses; false has no effect.",
    ),
    StatedRule(
        "R150",
        "a worker extension is a base class of the worker",
        ("parallel.worker_extension_cls", "parallel.worker_cls"),
        "Cannot occur: the engine process is the only worker and accepts no other class.",
    ),
    StatedRule(
        "R151",
        "reductions need several devices",
        ("parallel.disable_custom_all_reduce", "parallel.tensor_parallel_size"),
        "Cannot occur: one device needs no reductions, and the option is refused.",
    ),
    StatedRule(
        "R155",
        "splitting the media encoder by its batch",
        ("multimodal.mm_encoder_tp_mode", "parallel.tensor_parallel_size"),
        "Cannot occur: this build reads no media.",
    ),
    StatedRule(
        "R156",
        "an old option is mm_encoder_tp_mode",
        ("parallel.enable_multimodal_encoder_data_parallel", "multimodal.mm_encoder_tp_mode"),
        "It becomes `mm_encoder_tp_mode: data`, which this build refuses; false has no effect.",
    ),
)
