"""Decisions: every option's value while `auto` is replaced, with its origin, and the use of memory that follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...model.context_parallel import context_parallel_problem
from ...model.pipeline_stages import pipeline_problem
from ...model.spec import ModelSpec
from ...model.tensor_parallel import tensor_parallel_problem
from ..held_codes import CodesLayout, codes_layout
from ..memory.memory_plan import MemoryPlan
from ..memory.needs import MemoryNeeds
from ..origin import DEFAULT, Layer, Origin
from ..schema.topology import Topology
from .described_model import ModelFiles
from .machine_spec import GpuSpec, MachineSpec
from .numa_places import NumaPlace
from .sections import Sections


@dataclass
class Decisions(Sections):
    """Values by section, their origins, and the resulting use of memory."""

    origins: dict[str, Origin]
    model_files: ModelFiles | None
    whole_machine: MachineSpec
    machine: MachineSpec  # the share of one process that computes
    topology: Topology
    transfer_bytes: int = 0  # host memory of each replica for blocks that other engines may read
    shared_folder: str | None = None  # of a connector
    numa_places: list[NumaPlace] = field(default_factory=list)  # of all processes of this machine, if they are bound
    no_numa_places: str = ""  # why this machine does not have those that are written
    memory_needs: MemoryNeeds | None = None
    memory: MemoryPlan | None = None  # which follows from them
    undecided: set[str] = field(default_factory=set)  # paths that need the model's files

    def num_ranks(self, spec: ModelSpec) -> int:
        """Processes that have parts of the same layers. spec: the whole model; 1 where it cannot be divided."""
        return 1 if tensor_parallel_problem(spec, self.topology.group_size) else self.topology.group_size

    def num_stages(self, spec: ModelSpec) -> int:
        """Stages of the pipeline. spec: the whole model; 1 where it cannot be staged."""
        return 1 if pipeline_problem(spec, self.topology.num_stages) else self.topology.num_stages

    def context_parts(self, spec: ModelSpec) -> int:
        """Processes that share the tokens of each sequence. spec: the whole model; 1 where they cannot share them."""
        num_devices, num_parts = self.num_ranks(spec), self.topology.num_context_parts
        is_possible = num_devices % num_parts == 0 and not context_parallel_problem(spec, num_devices, num_parts)
        return num_parts if is_possible else 1

    @property
    def gpu(self) -> GpuSpec | None:
        """The GPU, if the deployment runs on one."""
        return self.machine.gpu if self.device.device == "cuda" else None

    @property
    def is_interpreted(self) -> bool:
        return self.gpu is not None and self.gpu.is_interpreted

    def codes_layout(self, device: str, *, cpu_keeps_codes: bool) -> CodesLayout | None:
        """The layout of quantised matrices that stay in the checkpoint's own codes. See held_codes.codes_layout."""
        return codes_layout(
            device,
            cpu_keeps_codes=cpu_keeps_codes,
            is_eager=self.model.enforce_eager,
            is_batch_invariant=self.model.batch_invariant,
        )

    @property
    def retention_interval(self) -> int:
        """`cache.prefix_cache_retention_interval`; 0 without prefix caching."""
        interval = int(self.cache.prefix_cache_retention_interval)
        return interval if self.cache.enable_prefix_caching else 0

    @property
    def tokens_of_vector(self) -> int:
        """ModelSpec's; 1 if the model's files are not known."""
        return 1 if self.model_files is None else self.model_files.spec.tokens_of_vector

    @property
    def why_whole(self) -> str:
        """Why each prompt is computed in one step; empty if it can be computed in chunks."""
        if not self.scheduler.enable_chunked_prefill:
            return "chunked prefill is off"
        if self.model_files is None or not self.model_files.spec.needs_whole_prompts:
            return ""
        if not self.model_files.spec.is_causal:
            return "tokens of this model see later ones"
        return "the results of this model are made of all tokens of a prompt"

    @property
    def computes_in_chunks(self) -> bool:
        return not self.why_whole

    @property
    def offload_bytes(self) -> int:
        """Host memory of each replica for its own KV blocks."""
        return int((self.cache.kv_offloading_size or 0) * 2**30)

    @property
    def stored_shares(self) -> tuple[int, int]:
        """One process's share of the host memory for blocks that other engines may read, and for other blocks.

        The first process of a replica holds all of these blocks. Each other process of the replica on its machine
        reserves the same share, so that the sum is left for the first one.
        """
        num_ranks = self.topology.num_local_ranks
        return -(-self.transfer_bytes // num_ranks), -(-self.offload_bytes // num_ranks)

    @property
    def stores_blocks(self) -> bool:
        """Whether KV blocks are kept outside the KV cache."""
        named = (self.cache.kv_directory, self.kv_transfer.kv_connector)
        return self.offload_bytes > 0 or any(each is not None for each in named)

    @property
    def available_memory_bytes(self) -> int:
        """Bytes free on the device; of the machine if the requested GPU does not exist, which a rule reports."""
        return (self.gpu or self.machine).available_memory_bytes

    def get(self, path: str) -> Any:
        section, _, name = path.partition(".")
        return getattr(getattr(self, section), name)

    def is_auto(self, path: str) -> bool:
        """Whether it is not decided yet."""
        return bool(self.get(path) == "auto")

    def is_written(self, path: str) -> bool:
        """Whether it was set by a preset, a file, the environment or the command line."""
        return self.origins.get(path, DEFAULT).layer not in (Layer.DEFAULT, Layer.MODEL, Layer.RULE)

    def decide(self, path: str, value: Any, name: str, reason: str, layer: Layer = Layer.RULE) -> None:
        self.put(path, value)
        self.origins[path] = Origin(layer=layer, name=name, reason=reason)
        self.undecided.discard(path)

    def put(self, path: str, value: Any) -> None:
        """Change the form of a value, whose origin stays."""
        section, _, name = path.partition(".")
        setattr(self, section, getattr(self, section).model_copy(update={name: value}))
