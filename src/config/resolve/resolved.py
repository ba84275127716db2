"""The records of a running deployment: model and machine as read, values as decided, sizes as measured.

All are frozen and go through JSON unchanged (the engine process reads Resolved on its standard input).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ...model.cache_groups import CacheGroups, kv_bytes_per_token, longest_sequence, model_cache_groups
from ...model.offload import WeightOffload
from ...model.quantised import TWELVE_BITS
from ...model.record import Record
from ...model.sharding import (
    holders_of_blocks,
    not_divisible,
    not_staged,
    of_one_device,
    of_stages,
    stages,
    with_placed_experts,
)
from ...model.sizes import count_parameters, matrix_bytes, weights_bytes
from ...model.spec import ModelSpec, WeightNames
from ...model.through_transformers import Implementation
from ..auto_values import RESERVED_FILES
from ..checkpoint.chat_templates import TemplateSource
from ..checkpoint.repository_code import RepositoryCode
from ..held_codes import CodesLayout
from ..model_facts import Fact
from ..origin import DEFAULT, Origin, Overridden
from ..schema.cache import CacheConfig
from ..schema.compilation import CompilationConfig
from ..schema.device import DeviceConfig
from ..schema.kv_events import KVEventsConfig
from ..schema.kv_transfer import KVTransferConfig
from ..schema.load import LoadConfig
from ..schema.model import ModelConfig
from ..schema.observability import ObservabilityConfig
from ..schema.parallel import ParallelConfig
from ..schema.scheduler import SchedulerConfig
from ..schema.server import ServerConfig
from ..schema.structured_outputs import StructuredOutputsConfig
from .numa_nodes import NumaNode
from .sharded_state import StateShape
from .stored_as import OwnCodes, StoredAs

Dtype = Literal["float32", "bfloat16", "float16"]
KVDtype = Literal["float32", "bfloat16", "float16", "fp8", "int8"]  # fp8: e4m3
WeightFormat = Literal["safetensors", "pt", "npcache", "sharded_state", "mistral", "gguf", "dummy"]


class ModelFiles(Record):
    """The model's files as they are found, without loading weights. `hf_overrides` are already applied."""

    model_path: str  # directory that holds the weights
    config_path: str  # directory whose config.json or params.json was read
    spec: ModelSpec
    implementation: Implementation = "native"
    code: RepositoryCode | None = None  # of the model's repository, which defines its class
    config_json: dict[str, Any] = Field(default_factory=dict)  # what transformers builds the model from; else empty
    max_context: int  # tokens; max_position_embeddings with model.rope_scaling and disable_sliding_window applied
    window: int | None  # the model's longest sliding window, also with disable_sliding_window
    rope_theta: float | None  # None: the model has no rotary embedding, or several
    own_rope_theta: float | None  # without model.rope_theta
    checkpoint_dtype: str  # float32, bfloat16 or float16
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None
    sampling_defaults: dict[str, Any]  # from generation_config.json, under this project's names
    tokenizer_path: str | None  # directory or GGUF file that holds the tokenizer; None with skip_tokenizer_init
    template_fact: Fact | None = None  # the chat template of a known model without one
    weight_files: tuple[str, ...]  # names relative to model_path; empty with load_format dummy
    weight_format: WeightFormat
    stored_as: tuple[StoredAs, ...] = ()  # the quantised matrices of the checkpoint
    own_codes: tuple[OwnCodes, ...] = ()  # of those, what kernels can hold as it is
    num_stored: int | None = None  # elements in the weight files, where the description is an estimate
    state: StateShape | None = None  # of a sharded state, whose weights are as kernels hold them
    unused_overrides: tuple[str, ...] = ()  # keys of hf_overrides that nothing reads and config.json lacks

    @property
    def num_parameters(self) -> int:
        return count_parameters(self.spec).total if self.num_stored is None else self.num_stored

    def weights_bytes(self, dtype: str, held: str | None = None, *, layout: CodesLayout | None = None) -> int:
        """Bytes of all weights when held in `dtype`, those of the linear layers as `quantised.held_in` says.

        layout: in which quantised matrices stay in the checkpoint's own codes, as far as kernels take them.
        """
        described = weights_bytes(self.spec, dtype, held)
        for each in self.own_codes if layout is not None and held in (None, TWELVE_BITS) else ():
            if (each.is_of_bfloat16 and dtype != "bfloat16") or (each.are_of_experts and layout == "rows"):
                continue
            otherwise = matrix_bytes(held, dtype, each.outputs, each.inputs)
            more = (each.row_bytes if layout == "rows" else each.num_bytes) - each.num_matrices * otherwise
            described += int(more * self.spec.held_share) if each.are_of_experts else more
        return (
            described if self.num_stored is None else described * self.num_stored // count_parameters(self.spec).total
        )

    def placed(self, parallel: ParallelConfig) -> ModelFiles:
        """The files of a model whose experts are placed as the options say."""
        num_replicas = parallel.num_sharing_experts
        if num_replicas * parallel.tensor_parallel_size == 1 or not parallel.enable_expert_parallel:
            return self
        if not self.spec.has_experts:
            return self
        redundant = parallel.expert_balance.num_redundant_experts if parallel.enable_eplb else None
        placed = with_placed_experts(self.spec, parallel.expert_placement_strategy, redundant, num_replicas)
        return self.model_copy(update={"spec": placed})

    def of_one_rank(self, num_ranks: int) -> ModelFiles:
        """The files of a model as large as what each rank of a stage has; these ones where it cannot be divided."""
        if not_divisible(self.spec, num_ranks):
            return self
        return self.model_copy(update={"spec": of_one_device(self.spec, num_ranks)})

    def of_stages(self, num_stages: int) -> list[ModelSpec]:
        """What each stage computes; all of it where it cannot be staged."""
        return [self.spec] if not_staged(self.spec, num_stages) else of_stages(self.spec, num_stages)


class GpuSpec(Record):
    """The GPU that this process would compute on."""

    name: str  # such as NVIDIA H200
    total_memory_bytes: int  # usable by programs
    available_memory_bytes: int  # free now
    compute_capability: tuple[int, int]  # (9, 0) is Hopper
    is_interpreted: bool = False  # no GPU at all: Triton's interpreter runs the kernels on the CPU
    num_visible: int = 1  # GPUs that this process may use, this one included


class MachineSpec(Record):
    """What this machine offers to this process."""

    system: str  # Linux, Darwin
    architecture: str  # x86_64, arm64
    num_cores: int  # cores this process may use, cgroup and affinity counted
    total_memory_bytes: int  # RAM, or the cgroup's limit if that is less
    available_memory_bytes: int  # free for new allocations now
    cpu_flags: tuple[str, ...]  # instruction sets, as /proc/cpuinfo names them
    cpu_name: str = ""
    keeps_twelve_bits: bool = False  # whether the engine's kernels hold bfloat16 weights in 12 bits here
    keeps_codes: bool = False  # whether they hold quantised checkpoints as they are
    has_terminal: bool = False  # whether stderr is a terminal
    max_open_files: int | None = None  # of this process; None is no limit
    numa_nodes: tuple[NumaNode, ...] = ()  # none where the system does not list them
    no_memory_policy: str = ""  # why this process cannot say which node memory comes from; empty if it can
    gpu: GpuSpec | None = None
    no_gpu: str = ""  # why there is no real GPU; empty if there is one

    def shared_by(self, num_processes: int) -> MachineSpec:
        """What each of several processes that compute has of the cores and the memory. A real GPU is not shared: each
        has its own."""
        if num_processes == 1:
            return self
        gpu = self.gpu
        if gpu is not None and gpu.is_interpreted:
            total, available = gpu.total_memory_bytes // num_processes, gpu.available_memory_bytes // num_processes
            gpu = gpu.model_copy(update={"total_memory_bytes": total, "available_memory_bytes": available})
        share = {
            "num_cores": max(1, self.num_cores // num_processes),
            "total_memory_bytes": self.total_memory_bytes // num_processes,
            "available_memory_bytes": self.available_memory_bytes // num_processes,
            "gpu": gpu,
        }
        return self.model_copy(update=share)

    def with_memory_of(self, numbers: set[int]) -> MachineSpec:
        """With no more memory than these NUMA nodes have."""
        nodes = [node for node in self.numa_nodes if node.number in numbers]
        if all(node in nodes or not node.total_memory_bytes for node in self.numa_nodes):
            return self
        return self.with_at_most(
            sum(node.total_memory_bytes for node in nodes), sum(node.available_memory_bytes for node in nodes)
        )

    def with_at_most(self, total: int, available: int) -> MachineSpec:
        """With no more memory than this. A real GPU has its own."""

        def limited(memory: MachineSpec | GpuSpec) -> dict[str, int]:
            return {
                "total_memory_bytes": min(memory.total_memory_bytes, total),
                "available_memory_bytes": min(memory.available_memory_bytes, available),
            }

        gpu = self.gpu
        if gpu is not None and gpu.is_interpreted:
            gpu = gpu.model_copy(update=limited(gpu))
        return self.model_copy(update={**limited(self), "gpu": gpu})

    @property
    def max_connections(self) -> int | None:
        """How many clients a server on this machine can have at a time; None is no limit."""
        return None if self.max_open_files is None else self.max_open_files - RESERVED_FILES

    @property
    def has_bfloat16(self) -> bool:
        """Whether the CPU has bfloat16 multiplication."""
        return any(flag in self.cpu_flags for flag in ("avx512_bf16", "amx_bf16", "bf16"))


class MemoryPlan(Record):
    """Bytes on the device: total, and by use."""

    budget_bytes: int  # gpu_memory_utilization x what is available on a CPU, x all there is on a GPU
    weights_bytes: int
    weight_offload: WeightOffload | None = None  # weights in host memory, which are not counted in `weights_bytes`
    num_states: int = 0  # recurrent states: of max_num_seqs sequences, and those that are kept for later requests
    state_bytes: int = 0  # of all of them
    activation_bytes: int = 0  # reserved for the steps on a GPU; a CPU's budget does not include them
    transfer_bytes: int = 0  # on a CPU: for blocks that other engines may read
    kept_bytes: int = 0  # on a CPU: for blocks beside the KV cache (`cache.kv_offloading_size`)
    moving_bytes: int = 0  # experts on their way to this process
    kv_bytes_per_token: int  # on a process that keeps it
    kv_block_bytes: int  # of a block of all groups of layers; with context parallel, of the part of one process
    kv_cache_bytes: int  # num_kv_blocks x kv_block_bytes

    @property
    def total_bytes(self) -> int:
        others = self.state_bytes + self.transfer_bytes + self.kept_bytes + self.moving_bytes
        return self.weights_bytes + others + self.kv_cache_bytes


class ResolvedModel(ModelConfig):
    tokenizer: str  # the directory or GGUF file that holds it; the model's own with skip_tokenizer_init
    hf_config_path: str  # the directory whose config.json or params.json was read
    config_format: WeightNames
    dtype: Dtype
    max_model_len: int


class ResolvedLoad(LoadConfig):
    load_format: WeightFormat


class ResolvedCache(CacheConfig):
    block_size: Literal[8, 16, 32, 64, 128]
    kv_cache_memory_bytes: int
    kv_cache_dtype: KVDtype


class ResolvedScheduler(SchedulerConfig):
    """cuda_graph_sizes: decode rows that graphs are captured for, ascending; none means no graphs."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_partial_prefills: int
    max_long_partial_prefills: int
    long_prefill_token_threshold: int
    max_queued_tokens: int
    async_scheduling: bool


class ResolvedDevice(DeviceConfig):
    device: Literal["cpu", "cuda"]
    num_threads: int


class ResolvedCompilation(CompilationConfig):
    level: Literal[0, 1, 2, 3]


class ResolvedServer(ServerConfig):
    log_format: Literal["human", "json"]
    http_log_level: Literal["critical", "error", "warning", "info", "debug", "trace"]
    max_incomplete_header_bytes: int
    max_connections: int
    max_connections_per_client: int
    max_total_request_bytes: int


class Resolved(Record):
    """Every value decided. `origins` gives the origin of each by dotted path; values not in it are defaults."""

    model: ResolvedModel
    load: ResolvedLoad
    cache: ResolvedCache
    scheduler: ResolvedScheduler
    parallel: ParallelConfig
    device: ResolvedDevice
    compilation: ResolvedCompilation
    structured_outputs: StructuredOutputsConfig = Field(default_factory=StructuredOutputsConfig)
    kv_transfer: KVTransferConfig = Field(default_factory=KVTransferConfig)
    kv_events: KVEventsConfig = Field(default_factory=KVEventsConfig)
    observability: ObservabilityConfig = Field(default_factory=ObservabilityConfig)
    server: ResolvedServer
    model_files: ModelFiles
    machine: MachineSpec  # the share of one process that computes
    memory: MemoryPlan  # of one process
    model_path: str
    num_kv_blocks: int  # of each group of layers
    chat_template: TemplateSource | None = None  # of server.chat_template; None: the tokenizer's own
    sampling_defaults: dict[str, Any] = Field(
        default_factory=dict
    )  # generation_config with override_generation_config applied
    origins: dict[str, Origin] = Field(default_factory=dict)
    overridden: dict[str, tuple[Overridden, ...]] = Field(default_factory=dict)  # replaced by stronger layers, by path
    secret_variables: frozenset[str] = frozenset()  # names of environment variables that secrets are read from
    digest: str = ""  # hash of the written configuration, as `engine config --hash` prints it
    warnings: tuple[str, ...] = ()  # as text

    def origin(self, path: str) -> Origin:
        """Where the value at a dotted path such as `cache.block_size` comes from."""
        return self.origins.get(path, DEFAULT)

    def replica(self, rank: int) -> Resolved:
        """The deployment as the engine with this rank reads it: one replica."""
        alone: dict[str, Any] = {
            "data_parallel_rank": rank,
            "data_parallel_start_rank": None,
            "data_parallel_size_local": None,
            "data_parallel_hybrid_lb": False,
            "data_parallel_multi_port_external_lb": False,
        }
        parallel = self.parallel.model_copy(update=alone)
        device = self.device
        if device.numa_bind:
            first = self.parallel.ranks.index(rank) * parallel.num_local_ranks
            own = slice(first, first + parallel.num_local_ranks)
            names = ("numa_bind_nodes", "numa_bind_cpus")
            device = device.model_copy(update={name: getattr(device, name)[own] for name in names})
        return self.model_copy(update={"parallel": parallel, "device": device})

    def server_of(self, rank: int) -> Resolved:
        """The deployment as the server with this replica alone reads it (`data_parallel_multi_port_external_lb`)."""
        port = self.parallel.ports(self.server.port)[rank]
        return self.replica(rank).model_copy(update={"server": self.server.model_copy(update={"port": port})})

    @property
    def numa_places(self) -> tuple[tuple[int, str], ...]:
        """Node and cores of each process of this machine, by replica and rank; empty if they are not bound."""
        if not self.device.numa_bind:
            return ()
        return tuple(zip(self.device.numa_bind_nodes, self.device.numa_bind_cpus, strict=True))

    @property
    def served_model_names(self) -> tuple[str, ...]:
        """Names the API answers to, the first one shown in responses."""
        return self.model.served_model_name or (self.model.model,)

    @property
    def num_kv_tokens(self) -> int:
        return self.num_kv_blocks * self.cache.block_size

    def max_cached_len(self, num_blocks: int) -> int:
        """Tokens of the longest sequence in `num_blocks` blocks of all groups together, at most max_model_len."""
        scheduler = self.scheduler
        step_tokens = scheduler.max_num_batched_tokens if scheduler.enable_chunked_prefill else None
        windows, size = self.cache_groups.windows, self.cache.block_size
        return longest_sequence(windows, num_blocks, size, step_tokens, self.model.max_model_len)

    @property
    def model_spec(self) -> ModelSpec:
        return self.model_files.spec

    @property
    def shares_experts(self) -> bool:
        """Whether the replicas have only some of the experts each, and compute every step together."""
        return self.parallel.num_sharing_experts > 1 and self.model_spec.has_experts

    @property
    def rank_spec(self) -> ModelSpec:
        """What the processes of all stages compute that have the same rank in them: all of the model, or a part with
        tensor parallel."""
        return self.model_files.of_one_rank(self.parallel.tensor_parallel_size).spec

    @property
    def stores_blocks(self) -> bool:
        """Whether KV blocks are kept outside the KV cache."""
        cache = self.cache
        named = cache.kv_directory is not None or self.kv_transfer.kv_connector is not None
        return named or cache.kv_offloading_bytes > 0

    @property
    def block_holders(self) -> tuple[tuple[int, ...], bool]:
        """As holders_of_blocks, of the processes of a replica."""
        return holders_of_blocks(self.model_files.spec, self.parallel.tensor_parallel_size)

    @property
    def stored_block_bytes(self) -> int:
        """Of a block outside the KV cache."""
        return self.memory.kv_block_bytes * len(self.block_holders[0])

    @property
    def uses_gpus(self) -> bool:
        """Real ones: kernels that are interpreted run on the CPU."""
        gpu = self.machine.gpu
        return self.device.device == "cuda" and gpu is not None and not gpu.is_interpreted

    @property
    def num_stages(self) -> int:
        return self.parallel.pipeline_parallel_size

    def stage_layers(self, stage: int) -> range:
        """The layers that the processes of this stage compute."""
        return stages(self.rank_spec, self.num_stages)[stage]

    def stage_spec(self, stage: int) -> ModelSpec:
        """What a process of this stage computes."""
        return of_stages(self.rank_spec, self.num_stages)[stage]

    @property
    def cache_groups(self) -> CacheGroups:
        """Of the layers of all stages."""
        is_hybrid = not self.scheduler.disable_hybrid_kv_cache_manager
        return model_cache_groups(self.rank_spec, self.model_files.max_context, is_hybrid)

    def stage_groups(self, stage: int) -> CacheGroups:
        """The same groups, with the layers of one stage."""
        if self.num_stages == 1:
            return self.cache_groups
        return self.cache_groups.of_layers(self.stage_layers(stage))

    def stage_kv_bytes(self, stage: int) -> int:
        """Of the KV cache of a process of this stage."""
        groups, dtype = self.stage_groups(stage), self.cache.kv_cache_dtype
        num_kept = self.num_kv_tokens // self.parallel.decode_context_parallel_size
        return num_kept * kv_bytes_per_token(self.rank_spec, dtype, groups)

    @property
    def num_kept_states(self) -> int:
        """Recurrent states that are kept for later requests."""
        return max(0, self.memory.num_states - self.scheduler.max_num_seqs)


class Measured(Record):
    """What start-up measured, next to what was planned."""

    weights_bytes: int
    kv_cache_bytes: int
    num_kv_blocks: int
    resident_bytes: int | None  # of the engine process, after warm-up; None if the system does not report it
    peak_bytes: int | None = None  # maximum so far
    phases: dict[str, float]  # start-up phase -> seconds, in order
    kernels: dict[str, str]  # stage -> kernel and why
