"""The records of a machine and its GPU as they are read."""

from __future__ import annotations

from ...model.record import Record
from ..auto_values import RESERVED_FILES
from .numa_nodes import NumaNode

_NO_LIMIT = 1 << 60  # bytes of memory


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
    absent_packages: tuple[str, ...] = ()  # of this project's packages beside `stoker`: those that are not installed

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
        """Return this machine with no more memory than these NUMA nodes have."""
        nodes = [node for node in self.numa_nodes if node.number in numbers]
        if all(node in nodes or not node.total_memory_bytes for node in self.numa_nodes):
            return self
        return self.with_at_most(
            sum(node.total_memory_bytes for node in nodes), sum(node.available_memory_bytes for node in nodes)
        )

    def with_at_most(self, total: int, available: int) -> MachineSpec:
        """Return this machine with no more memory than this. A real GPU has its own."""

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

    def without_limits(self) -> MachineSpec:
        """The machine, as one whose memory is never short: for a server without an engine, which needs none."""
        memory = {"total_memory_bytes": _NO_LIMIT, "available_memory_bytes": _NO_LIMIT}
        return self.model_copy(update={**memory, "numa_nodes": (), "gpu": None})
