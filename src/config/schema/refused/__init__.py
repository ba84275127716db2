"""Options that other serving engines have and this build does not: one row each, in the modules of this package.

Such an option is recognised everywhere (`engine explain`, JSON Schema, flags, `engine import`) and accepts only values
that describe what this build does anyway, mostly its default. To implement one, delete its row and declare a field of
the same name in its section's module: src/config/schema/<section>.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import Field, create_model

from ..section import Section
from . import devices, drafts, inputs, memory, model, outputs, serving
from .row import Refused

SectionType = TypeVar("SectionType", bound=Section)

REFUSED: dict[str, tuple[Refused, ...]] = {
    "model": model.MODEL,
    "load": model.LOAD,
    "cache": memory.CACHE,
    "scheduler": memory.SCHEDULER,
    "parallel": devices.PARALLEL,
    "device": devices.DEVICE,
    "lora": inputs.LORA,
    "multimodal": inputs.MULTIMODAL,
    "structured_outputs": outputs.STRUCTURED_OUTPUTS,
    "speculative": (*outputs.SPECULATIVE, *drafts.DRAFTS),
    "kv_transfer": outputs.KV_TRANSFER,
    "observability": serving.OBSERVABILITY,
    "server": serving.SERVER,
}


def with_refused(section: str) -> Callable[[type[SectionType]], type[SectionType]]:
    """Class decorator: the section with a field for each of its rows in the table, after its declared fields."""

    def add(declared: type[SectionType]) -> type[SectionType]:
        rows = REFUSED[section]
        both = sorted({row.name for row in rows} & declared.model_fields.keys())
        assert not both, f"{section}: declared and still in the table of refused options: {both}"
        fields: dict[str, Any] = {row.name: (row.type, _field(row)) for row in rows}
        return create_model(
            declared.__name__, __base__=declared, __module__=declared.__module__, __doc__=declared.__doc__, **fields
        )

    return add


def _field(row: Refused) -> Any:
    extra: dict[str, Any] = {"reload": "process", "devices": [], "reason": row.reason}
    for name in ("same", "aliases"):
        if value := getattr(row, name):
            extra[name] = list(value)
    if row.notation is not None:
        extra["notation"] = row.notation
    return Field(row.default, description=row.meaning, json_schema_extra=extra)
