"""The record of a running deployment: model and machine as read, values as decided, sizes as measured.

All records are frozen and go through JSON unchanged (the engine process reads Resolved on its standard input).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ...model.cache_groups import CacheGroups, kv_bytes_per_token, longest_sequence, model_cache_groups
from ...model.context_parallel import holders_of_blocks
from ...model.pipeline_stages import of_stages, stages
from ...model.record import Record
from ...model.spec import ModelSpec, WeightNames
from ..checkpoint.chat_templates import TemplateSource
from ..memory.memory_plan import MemoryPlan
from ..origin import DEFAULT, Origin, Overridden
from ..schema.cache import CacheConfig
from ..schema.compilation import CompilationConfig
from ..schema.device import DeviceConfig
from ..schema.kv_events import KVEventsConfig
from ..schema.kv_transfer import KVTransferConfig
from ..schema.load import LoadConfig
from ..schema.lora import LoRAConfig
from ..schema.model import ModelConfig
from ..schema.observability import ObservabilityConfig
from ..schema.parallel import ParallelConfig
from ..schema.scheduler import SchedulerConfig
from ..schema.section import Section
from ..schema.server import ServerConfig
from ..schema.speculative import SpeculativeConfig
from ..schema.structured_outputs import StructuredOutputsConfig
from ..schema.topology import Topology
from .adapter_files import NamedAdapter
from .described_model import ModelFiles, WeightFormat
from .machine_spec import MachineSpec

Dtype = Literal["float32", "bfloat16", "float16"]
KVDtype = Literal["float32", "bfloat16", "float16", "fp8", "int8"]  # fp8: e4m3


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


class ResolvedLoRA(LoRAConfig):
    """lora_dtype: that of the model."""

    max_cpu_loras: int = 1


class ResolvedSpeculative(SpeculativeConfig):
    method: Literal["ngram", "draft_model", "mtp", "eagle", "eagle3", "dflash"] | None = None


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
    lora: ResolvedLoRA = Field(default_factory=ResolvedLoRA)
    structured_outputs: StructuredOutputsConfig = Field(default_factory=StructuredOutputsConfig)
    speculative: ResolvedSpeculative = Field(default_factory=ResolvedSpeculative)
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

    @classmethod
    def sections(cls) -> dict[str, type[Section]]:
        """The classes of the sections that an engine reads, by name."""
        kinds = {name: field.annotation for name, field in cls.model_fields.items()}
        return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Section)}

    def origin(self, path: str) -> Origin:
        """Origin of the value at a dotted path such as `cache.block_size`."""
        return self.origins.get(path, DEFAULT)

    def replica(self, rank: int) -> Resolved:
        """The deployment as the engine with this rank reads it: one replica."""
        alone: dict[str, Any] = {
            "data_parallel_rank": rank,
            "data_parallel_start_rank": None,
            "data_parallel_size_local": None,
            "data_parallel_hybrid_lb": False,
        }
        parallel = self.parallel.model_copy(update=alone)
        device, topology = self.device, self.topology
        if device.numa_bind:
            first = topology.replicas.index(rank) * topology.num_local_ranks
            own = slice(first, first + topology.num_local_ranks)
            names = ("numa_bind_nodes", "numa_bind_cpus")
            device = device.model_copy(update={name: getattr(device, name)[own] for name in names})
        return self.model_copy(update={"parallel": parallel, "device": device})

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
    def adapters(self) -> tuple[NamedAdapter, ...]:
        """The adapters that are loaded at the start."""
        return self.model_files.adapters

    @property
    def model_spec(self) -> ModelSpec:
        return self.model_files.spec

    @property
    def shares_experts(self) -> bool:
        """Whether the replicas have only some of the experts each, and compute every step together."""
        return self.topology.num_sharing_experts > 1 and self.model_spec.has_experts

    @property
    def rank_spec(self) -> ModelSpec:
        """What the processes of all stages compute that have the same rank in them: all of the model, or a part with
        tensor parallel."""
        return self.model_files.of_one_rank(self.topology.group_size).spec

    @property
    def drafts_from_states(self) -> bool:
        """Whether a network that drafts begins with what the model has computed."""
        draft = self.model_files.draft
        return draft is not None and draft.draft.reads_model

    @property
    def stores_blocks(self) -> bool:
        """Whether KV blocks are kept outside the KV cache."""
        cache = self.cache
        named = cache.kv_directory is not None or self.kv_transfer.kv_connector is not None
        return named or cache.kv_offloading_bytes > 0

    @property
    def block_holders(self) -> tuple[tuple[int, ...], bool]:
        """Return holders_of_blocks of the processes of a replica."""
        return holders_of_blocks(self.model_files.spec, self.topology.group_size)

    @property
    def stored_block_bytes(self) -> int:
        """Bytes of a block outside the KV cache."""
        return self.memory.kv_block_bytes * len(self.block_holders[0])

    @property
    def uses_gpus(self) -> bool:
        """Real ones: kernels that are interpreted run on the CPU."""
        gpu = self.machine.gpu
        return self.device.device == "cuda" and gpu is not None and not gpu.is_interpreted

    @property
    def launches_on_device(self) -> bool:
        """Whether a GPU prepares its steps and samples, with what is captured. Else the host does: for the stages of a
        pipeline, and for models that generate no tokens."""
        return self.device.device != "cpu" and self.num_stages == 1 and self.model_spec.generates

    @property
    def topology(self) -> Topology:
        return self.parallel.topology

    @property
    def num_stages(self) -> int:
        return self.topology.num_stages

    def stage_layers(self, stage: int) -> range:
        """The layers that the processes of this stage compute."""
        return stages(self.rank_spec, self.num_stages)[stage]

    def stage_spec(self, stage: int) -> ModelSpec:
        """What a process of this stage computes."""
        return of_stages(self.rank_spec, self.num_stages)[stage]

    @property
    def cache_groups(self) -> CacheGroups:
        """Cache groups of the layers of all stages."""
        is_hybrid = not self.scheduler.disable_hybrid_kv_cache_manager
        return model_cache_groups(self.rank_spec, self.model_files.max_context, is_hybrid)

    def stage_groups(self, stage: int) -> CacheGroups:
        """The same groups, with the layers of one stage."""
        if self.num_stages == 1:
            return self.cache_groups
        return self.cache_groups.of_layers(self.stage_layers(stage))

    def stage_kv_bytes(self, stage: int) -> int:
        """Bytes of the KV cache of a process of this stage."""
        groups, dtype = self.stage_groups(stage), self.cache.kv_cache_dtype
        num_kept = self.num_kv_tokens // self.topology.num_context_parts
        return num_kept * kv_bytes_per_token(self.rank_spec, dtype, groups)

    @property
    def num_kept_states(self) -> int:
        """Recurrent states that are kept for later requests."""
        return self.memory.num_kept_states


class Measured(Record):
    """What start-up measured, next to what was planned."""

    weights_bytes: int
    kv_cache_bytes: int
    num_kv_blocks: int
    resident_bytes: int | None  # of the engine process, after warm-up; None if the system does not report it
    peak_bytes: int | None = None  # maximum so far
    phases: dict[str, float]  # start-up phase -> seconds, in order
    kernels: dict[str, str]  # stage -> kernel and why
