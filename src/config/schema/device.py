"""Section `device`: what the engine computes on."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .section import Section, about
from .types import Auto, Count


class DeviceConfig(Section):
    """The device and how much of it the engine uses."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description=(
            "Where the model runs. `cuda` is an NVIDIA GPU of compute capability 8.0 (Ampere) or newer, the first one "
            "that CUDA_VISIBLE_DEVICES shows; a start without one fails. `auto` takes it where there is one, and the "
            "CPU elsewhere. With TRITON_INTERPRET=1 and no GPU, `cuda` runs the same kernels in Triton's interpreter "
            "on the CPU: thousands of times slower, for tests."
        ),
        examples=["cuda"],
        json_schema_extra=about(
            reload="process",
            refused={
                "gpu": "write cuda",
                **dict.fromkeys(
                    (f"cuda:{number}" for number in range(16)),
                    "write cuda; the environment variable CUDA_VISIBLE_DEVICES says which GPU, by number or UUID",
                ),
                **dict.fromkeys(
                    ("rocm", "mps", "tpu", "xpu", "hpu", "neuron", "openvino"),
                    "not supported; write cuda, cpu or auto",
                ),
            },
        ),
    )
    num_threads: Count | Auto = Field(
        "auto",
        description=(
            "CPU threads that the engine computes with; with a GPU, those that prepare weights and steps for it. More "
            "than there are cores slows it down, because the threads wait for each other. `auto` is one per core that "
            "this process may use."
        ),
        examples=[8],
        json_schema_extra=about(reload="process", unit="threads"),
    )
    additional_config: dict[str, Any] = Field(
        {},
        description="Settings that are handed to the code of the device as they are.",
        examples=[{"cast_logits_dtype": "bfloat16"}],
        json_schema_extra=about(
            reload="process", devices=(), refused="no device of this build has settings beyond `device`"
        ),
    )
