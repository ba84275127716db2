"""Section `device`: what the engine computes on."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .section import Section, about
from .types import Auto, Count


class DeviceConfig(Section):
    """The device and how much of it the engine uses."""

    device: Literal["auto", "cpu"] = Field(
        "auto",
        description="Where the model runs. `auto` takes the best device that this build supports, which is the CPU.",
        examples=["cpu"],
        json_schema_extra=about(
            reload="process",
            refused={
                "cuda": "this build runs on CPUs only; write cpu or auto",
                **dict.fromkeys(
                    ("gpu", "rocm", "mps", "tpu", "xpu", "hpu", "neuron", "openvino"),
                    "not supported; write cpu or auto",
                ),
            },
        ),
    )
    num_threads: Count | Auto = Field(
        "auto",
        description=(
            "CPU threads that the engine computes with. More than there are cores slows it down, because the threads "
            "wait for each other. `auto` is one per core that this process may use."
        ),
        examples=[8],
        json_schema_extra=about(reload="process", unit="threads"),
    )
    additional_config: dict[str, Any] = Field(
        {},
        description="Settings that are handed to the code of the device as they are.",
        examples=[{"cast_logits_dtype": "bfloat16"}],
        json_schema_extra=about(reload="process", devices=(), refused="a CPU has no settings beyond those of `device`"),
    )
