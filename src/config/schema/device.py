"""Section `device`: what the engine computes on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..gpu_capability import LEAST_CAPABILITY, capability_text
from .refused import with_refused
from .section import Section, about
from .types import Auto, Count, Flag


@with_refused("device")
class DeviceConfig(Section):
    """The device and how much of it the engine uses."""

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
            reload="process",
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
        examples=[True],
        json_schema_extra=about(reload="process", devices=("cpu",)),
    )
    num_threads: Count | Auto = Field(
        "auto",
        description=(
            "Number of CPU threads that the engine computes with; with a GPU, those that prepare weights and steps for "
            "it. More threads than cores make it slower, because the threads wait for each other. `auto` is one per "
            "core that this process may use."
        ),
        examples=[8],
        json_schema_extra=about(reload="process", unit="threads"),
    )
