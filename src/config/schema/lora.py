"""Section `lora`: low-rank adapters on top of a model. Options that are not implemented: see the package `refused`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ...model.adapter import NAME_PATTERN
from .refused import with_refused
from .section import Section, about
from .types import Auto, Count, Flag, Text, Texts, means_auto

MODULES: dict[str, Any] = {
    "type": "object",
    "propertyNames": {"pattern": f"^{NAME_PATTERN}$"},
    "additionalProperties": {
        "type": "object",
        "properties": {
            "path": {"type": "string", "minLength": 1},
            "base_model_name": {"type": "string", "minLength": 1},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
}


@with_refused("lora")
class LoRAConfig(Section):
    """Adapters that requests may select."""

    enable_lora: Flag = Field(
        False,
        description=(
            "Serve low-rank adapters (LoRA) beside the model: a request names one as its `model`. Requests to "
            "different adapters and to the model itself share steps. Each adapter of a step costs time, and memory is "
            "reserved for `max_loras` of rank `max_lora_rank`."
        ),
    )
    modules: dict[str, Any] = Field(
        {},
        description=(
            "Adapters that are loaded at the start, by the names that clients use: each has a `path`, a folder that "
            "PEFT has written or a hub id, and may have a `base_model_name`, which GET /v1/models shows as its parent. "
            "Their headers are read by `engine validate` and `engine plan`, and what does not fit the model is an "
            "error before any weights load."
        ),
        examples=[{"sql": {"path": "./adapters/sql"}}],
        json_schema_extra=about(json_schema=MODULES),
    )
    max_loras: Count = Field(
        1,
        description=(
            "Maximum number of different adapters in one step. Requests to further ones wait until an adapter has no "
            "running request. More adapters can be loaded than this."
        ),
        examples=[4],
        json_schema_extra=about(unit="adapters"),
    )
    max_lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] = Field(
        16,
        description=(
            "Maximum rank of an adapter; one of a higher rank is refused with the number that it needs. Adapters of a "
            "smaller rank are computed with their own, and memory is reserved for this one."
        ),
        examples=[64],
    )
    max_cpu_loras: Annotated[Count | Auto, means_auto(0), means_auto(-1)] = Field(
        "auto",
        description=(
            "Maximum number of adapters in memory, those of a step included; others are read from their files when a "
            "request needs them. Memory is reserved for one more, which is read while the others compute. `auto`: "
            "`max_loras`."
        ),
        examples=[16],
        json_schema_extra=about(unit="adapters"),
    )
    lora_dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto",
        description=(
            "Number format of the matrices of adapters. `auto` is that of the model, `model.dtype`, and the only one: "
            "products of an adapter are added to those of the model in its own format."
        ),
        examples=["bfloat16"],
    )
    lora_target_modules: Texts = Field(
        (),
        description=(
            "Layers that adapters apply to, by the ends of their names, such as `q_proj`; `qkv_proj` and "
            "`gate_up_proj` are all of their parts. What an adapter has for other layers is left out, and no "
            "memory is planned for it. Empty: all layers of each adapter. Fewer layers make steps faster, and answers "
            "other than what was trained."
        ),
        examples=[["q_proj", "v_proj"]],
        json_schema_extra=about(notation="commas"),
    )
    resolver_folder: Text | None = Field(
        None,
        description=(
            "A folder with folders of adapters: a request whose `model` is the name of one loads it. Everyone who may "
            "write there decides what the server computes; names that leave the folder are unknown."
        ),
        examples=["./adapters"],
        json_schema_extra=about(kind="path", reload="process"),
    )
