"""Rules about the processes that compute a model together. The format of a rule: ../rule.py."""

from __future__ import annotations

from ...exit_codes import EXIT_ENVIRONMENT
from ...schema.parallel import MIN_TOKENS_EACH
from ..import_path import split_import_path
from ..rule import Rule
from ..values import Values


def _lacks_gpus(v: Values) -> bool:
    """Whether there are fewer GPUs than processes that compute: each process needs one."""
    gpu = v.decisions.gpu
    return gpu is not None and not gpu.is_interpreted and v.topology.num_processes > gpu.num_visible


def _has_undivided_steps(v: Values) -> bool:
    """Whether steps are to be divided that can only be computed whole, or in fewer parts."""
    if v.topology.num_prompt_groups > 1:
        return bool(v.parallel.num_step_parts > 2)
    is_causal = v.files is None or v.files.spec.is_causal
    can_divide = v.exchanges_over_gloo and v.topology.num_stages == 1 and is_causal
    return v.parallel.num_step_parts > 1 and not can_divide


def _fewest_shared_tokens(v: Values) -> int:
    """Minimum number of tokens of a step that is shared."""
    return int(v.parallel.prefill_context_parallel_size) * MIN_TOKENS_EACH


RULES: tuple[Rule, ...] = (
    Rule(
        id="R374",
        title="each process that computes has a GPU",
        fields=(
            *("parallel.data_parallel_size", "parallel.tensor_parallel_size", "parallel.pipeline_parallel_size"),
            "device.device",
        ),
        about_machine=True,
        exit_code=EXIT_ENVIRONMENT,
        is_broken=_lacks_gpus,
        message="{num_replicas} x {num_ranks} processes (replicas x processes of each) need {num_processes} GPUs, and "
        "this process may use {num_gpus}",
        why="Processes on one GPU would divide its memory and its time; one process uses both better.",
        fixes=(
            "lower `data_parallel_size`, `tensor_parallel_size` or `pipeline_parallel_size`: their product is at most "
            "{num_gpus}",
            "name more GPUs in CUDA_VISIBLE_DEVICES",
        ),
    ),
    Rule(
        id="R431",
        title="GPUs exchange in one way",
        fields=("parallel.disable_custom_all_reduce", "device.device"),
        severity="warning",
        about_machine=True,
        is_broken=lambda v: (
            v.parallel.disable_custom_all_reduce
            and v.topology.num_ranks > 1
            and v.decisions.gpu is not None
            and not v.decisions.is_interpreted
        ),
        message="`parallel.disable_custom_all_reduce` has no effect: GPUs exchange through NCCL",
        why="The option selects between shared memory and Gloo, which CPUs use.",
        fixes=("remove `disable_custom_all_reduce`",),
    ),
    Rule(
        id="R134",
        title="tensor_parallel_size is a multiple of decode_context_parallel_size",
        fields=("parallel.decode_context_parallel_size", "parallel.tensor_parallel_size"),
        is_broken=lambda v: v.parallel.tensor_parallel_size % v.parallel.decode_context_parallel_size != 0,
        message="`parallel.decode_context_parallel_size` is {decode_context_parallel_size}, and `tensor_parallel_size` "
        "is {tensor_parallel_size}",
        why="The processes that share the tokens of each sequence are groups of those of `tensor_parallel_size`.",
        fixes=("set `decode_context_parallel_size` to a divisor of {tensor_parallel_size}",),
    ),
    Rule(
        id="R482",
        title="each process has an equal part of a block",
        fields=(
            *("cache.block_size", "parallel.decode_context_parallel_size"),
            "parallel.cp_kv_cache_interleave_size",
        ),
        is_broken=lambda v: (
            v.parallel.decode_context_parallel_size > 1
            and v.cache.block_size % (v.parallel.decode_context_parallel_size * v.parallel.cp_kv_cache_interleave_size)
            != 0
        ),
        message="`cache.block_size` is {block_size}, and {decode_context_parallel_size} processes keep "
        "{cp_kv_cache_interleave_size} tokens each in turn",
        why="A block has the same positions on all processes, and on each of them an equal part of these.",
        fixes=("set `cache.block_size` to a multiple of {block_part}, or a lower `cp_kv_cache_interleave_size`",),
    ),
    Rule(
        id="R483",
        title="tokens in turn need processes that share them",
        fields=("parallel.cp_kv_cache_interleave_size", "parallel.decode_context_parallel_size"),
        severity="warning",
        is_broken=lambda v: v.parallel.cp_kv_cache_interleave_size > 1 and v.parallel.decode_context_parallel_size == 1,
        message="`parallel.cp_kv_cache_interleave_size` has no effect without `decode_context_parallel_size`",
        why="Each process keeps all tokens then.",
        fixes=("set `decode_context_parallel_size`, or remove `cp_kv_cache_interleave_size`",),
    ),
    Rule(
        id="R490",
        title="steps are divided where processes exchange over a network",
        fields=(
            *("parallel.enable_dbo", "parallel.ubatch_size", "parallel.tensor_parallel_size"),
            *("parallel.pipeline_parallel_size", "parallel.prefill_context_parallel_size", "device.device"),
            "model.model",
        ),
        is_broken=_has_undivided_steps,
        message="`parallel.enable_dbo` and `ubatch_size` are for the processes of `tensor_parallel_size` that exchange "
        "over a network, on CPUs, in one stage, and in two parts for those of `prefill_context_parallel_size`, of "
        "models whose tokens see no later ones",
        why="One part of a step is computed while the network has another. In shared memory the exchange is itself "
        "computed; the stages of a pipeline compute several steps at a time; the step of a GPU is one graph; a process "
        "that shares prompts has two pieces of a step; a token that sees later ones needs all parts.",
        fixes=("remove `enable_dbo` and `ubatch_size`", "or set `nnodes` and `tensor_parallel_size`"),
    ),
    Rule(
        id="R491",
        title="a number of tokens or parts needs steps that are divided",
        fields=(
            *("parallel.dbo_prefill_token_threshold", "parallel.dbo_decode_token_threshold"),
            *("parallel.enable_dbo", "parallel.ubatch_size"),
        ),
        severity="warning",
        is_broken=lambda v: (
            v.parallel.num_step_parts == 1
            and (
                v.parallel.enable_dbo
                or v.is_written("parallel.dbo_prefill_token_threshold")
                or v.is_written("parallel.dbo_decode_token_threshold")
            )
        ),
        message="`parallel.enable_dbo`, `dbo_prefill_token_threshold` and `dbo_decode_token_threshold` have no effect: "
        "steps are computed whole",
        why="`ubatch_size` is the number of parts of a step; 0 stands for two with `enable_dbo`.",
        fixes=("set `enable_dbo`, without `ubatch_size: 1`", "or remove these options"),
    ),
    Rule(
        id="R495",
        title="some steps have enough tokens to be shared",
        fields=("parallel.prefill_context_parallel_size", "scheduler.max_num_batched_tokens"),
        severity="warning",
        is_broken=lambda v: (
            v.parallel.prefill_context_parallel_size > 1
            and v.scheduler.max_num_batched_tokens < _fewest_shared_tokens(v)
        ),
        message="`parallel.prefill_context_parallel_size` has no effect: a step has at most {max_num_batched_tokens} "
        "tokens, and those from {fewest_shared_tokens} on are shared",
        said=lambda v: {"fewest_shared_tokens": _fewest_shared_tokens(v)},
        why="Every process computes a step of few tokens alone, because it has to read all weights for any of them.",
        fixes=("raise `max_num_batched_tokens`, or remove `prefill_context_parallel_size`",),
    ),
    Rule(
        id="R386",
        title="each process of a model has a core",
        fields=(
            *("parallel.tensor_parallel_size", "parallel.pipeline_parallel_size"),
            *("parallel.prefill_context_parallel_size", "parallel.data_parallel_size", "device.device"),
        ),
        severity="warning",
        about_machine=True,
        is_broken=lambda v: (
            v.device.device == "cpu"
            and v.topology.num_ranks > 1
            and v.topology.num_processes > v.decisions.whole_machine.num_cores
        ),
        message="{num_processes} processes share {num_machine_cores} cores",
        why="The processes of a model wait for each other many times a token: with fewer cores than processes each "
        "waits until the others had a core.",
        fixes=("lower `tensor_parallel_size`, `pipeline_parallel_size` or `prefill_context_parallel_size`",),
    ),
    Rule(
        id="R397",
        title="the executor fits the number of processes",
        fields=(
            *("parallel.distributed_executor_backend", "parallel.tensor_parallel_size"),
            *("parallel.pipeline_parallel_size", "parallel.prefill_context_parallel_size"),
        ),
        is_broken=lambda v: v.parallel.distributed_executor_backend == "uni" and v.topology.num_ranks > 1,
        message="`parallel.distributed_executor_backend` is uni, and {num_ranks} processes are to compute the model",
        why="`uni` is one process, `mp` several; `auto` follows from the sizes.",
        fixes=("remove `distributed_executor_backend`, or set it to mp or ray",),
    ),
    Rule(
        id="R398",
        title="several processes need a size above 1",
        fields=(
            *("parallel.distributed_executor_backend", "parallel.tensor_parallel_size"),
            *("parallel.pipeline_parallel_size", "parallel.prefill_context_parallel_size"),
        ),
        severity="warning",
        is_broken=lambda v: (
            v.decisions.is_written("parallel.distributed_executor_backend")
            and v.parallel.distributed_executor_backend in ("mp", "ray")
            and v.topology.num_ranks == 1
        ),
        message="`parallel.distributed_executor_backend: {distributed_executor_backend}` has no effect: one process "
        "computes the model",
        why="Processes are started for `tensor_parallel_size`, `pipeline_parallel_size` and "
        "`prefill_context_parallel_size`.",
        fixes=("remove `distributed_executor_backend`, or set one of the sizes",),
    ),
    Rule(
        id="R151",
        title="reductions need several processes",
        fields=("parallel.disable_custom_all_reduce", "parallel.tensor_parallel_size"),
        severity="warning",
        is_broken=lambda v: (
            v.parallel.disable_custom_all_reduce and v.parallel.tensor_parallel_size == 1 and not v.shares_experts
        ),
        message="`parallel.disable_custom_all_reduce` has no effect: one process computes the model",
        why="A process alone has nothing to exchange.",
        fixes=("remove `disable_custom_all_reduce`, or set `tensor_parallel_size`",),
    ),
    Rule(
        id="R148",
        title="a profiler of Ray workers needs Ray",
        fields=("parallel.ray_workers_use_nsight", "parallel.distributed_executor_backend"),
        is_broken=lambda v: v.parallel.ray_workers_use_nsight and v.parallel.distributed_executor_backend != "ray",
        message="`parallel.ray_workers_use_nsight` needs `distributed_executor_backend: ray`",
        why="Ray starts its actors under `nsys profile`; other processes of a model are not started by Ray.",
        fixes=("set `distributed_executor_backend: ray`", "or run the command itself under `nsys profile`"),
    ),
    Rule(
        id="R446",
        title="worker_extension_cls is an import path",
        fields=("parallel.worker_extension_cls",),
        is_broken=lambda v: (
            bool(v.parallel.worker_extension_cls) and split_import_path(v.parallel.worker_extension_cls) is None
        ),
        message="`parallel.worker_extension_cls` is not the import path of a class: {worker_extension_cls}",
        why="Each process of the model imports the class from this module.",
        fixes=("write `package.module:Class`, or remove it",),
    ),
    Rule(
        id="R465",
        title="worker_cls is an import path",
        fields=("parallel.worker_cls",),
        is_broken=lambda v: v.parallel.worker_cls != "auto" and split_import_path(v.parallel.worker_cls) is None,
        message="`parallel.worker_cls` is not the import path of a class: {worker_cls}",
        why="Each process of the model imports the class from this module.",
        fixes=("write `package.module:Class`, or remove it",),
    ),
)
