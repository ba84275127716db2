"""Section `device`: what the engine computes on."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ..gpu_capability import LEAST_CAPABILITY, capability_text
from .refused import with_refused
from .section import Reload, Section, about
from .types import Auto, Count, Flag, NodeNumbers, Texts


@with_refused("device")
class DeviceConfig(Section):
    """The device and how much of it the engine uses."""

    reload: ClassVar[Reload] = "process"

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description=(
            "Device that the model runs on. `cuda` is an NVIDIA GPU of compute capability "
            f"{capability_text(LEAST_CAPABILITY)} (Ampere) or newer, the "
            "first one in CUDA_VISIBLE_DEVICES, or as many as the processes of `parallel`; the start fails if there "
            "is none. `auto` is `cuda` where there is such a GPU, and `cpu` elsewhere. With TRITON_INTERPRET=1 and no "
            "GPU, `cuda` runs the same kernels in Triton's interpreter on the CPU: thousands of times slower, for "
            "tests."
        ),
        examples=["cuda"],
        json_schema_extra=about(
            refused={
                "gpu": "write cuda",
                **dict.fromkeys(
                    (f"cuda:{number}" for number in range(16)),
                    "write cuda; the environment variable CUDA_VISIBLE_DEVICES selects the GPU, by number or UUID",
                ),
                **dict.fromkeys(
                    ("rocm", "mps", "tpu", "xpu", "hpu", "neuron", "openvino"),
                    "not supported; write cuda, cpu or auto",
                ),
            },
        ),
    )
    self_test: Flag = Field(
        False,
        description=(
            "Measure for a second at the start how fast the linear layers are, and print in the start-up table which "
            "share that is of what the memory and the multipliers of this machine can do in the same second. Low "
            "shares mean that other programs use the cores, or that the kernels do not suit the machine."
        ),
        json_schema_extra=about(devices=("cpu",)),
    )
    num_threads: Count | Auto = Field(
        "auto",
        description=(
            "Number of CPU threads that the engine computes with; with a GPU, those that prepare weights and steps for "
            "it. More threads than cores make it slower, because the threads wait for each other. `auto` is one per "
            "core that this process may use; with `numa_bind`, of the process that has the fewest."
        ),
        examples=[8],
        json_schema_extra=about(unit="threads"),
    )
    numa_bind: Flag = Field(
        False,
        description=(
            "Whether each process that computes keeps to one NUMA node: its threads run on cores of that node, and "
            "all its memory - weights, KV cache, what it writes for other processes - comes from that node and from no "
            "other. For machines with several sockets, whose cores read the memory of another socket slowly, with a "
            "process for each node: `parallel.tensor_parallel_size` or `parallel.data_parallel_size`. The processes "
            "are spread evenly over the nodes that have cores and memory. Linux only; containers need the capability "
            "SYS_NICE."
        ),
    )
    numa_bind_nodes: NodeNumbers = Field(
        (),
        description=(
            "NUMA node of each process of this machine, in order: all processes of the first replica by rank, then "
            "those of the next one. As many as processes; a node may be named several times, and these processes "
            "divide its cores. Each machine of several has its own list. Implies `numa_bind`; needed with GPUs, where "
            "`nvidia-smi topo -m` shows the node of each."
        ),
        examples=[[0, 1]],
        json_schema_extra=about(unit="nodes"),
    )
    numa_bind_cpus: Texts = Field(
        (),
        description=(
            "Cores of each process of this machine, in the same order as `numa_bind_nodes`, as Linux numbers them: "
            "hyperthreads count as cores. Without `numa_bind_nodes` the node follows from the cores; with it, memory "
            "may come from another node than the cores, such as one that has memory only. Implies `numa_bind`."
        ),
        examples=[["0-15", "16-31"]],
    )
