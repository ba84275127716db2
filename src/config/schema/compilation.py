"""Section `compilation`: compilation and captured graphs of CUDA devices."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from .section import Section, about
from .types import Counts, number_or_text

NO_GRAPHS = "captured graphs and compilation belong to CUDA devices, which this build does not run on"

Level = Annotated[Literal["auto", 0, 1, 2, 3], BeforeValidator(number_or_text)]


class CompilationConfig(Section):
    """Compilation and graph capture on CUDA devices."""

    json_flags: ClassVar[tuple[str, ...]] = ("--compilation-config", "-cc", "-O")

    level: Level = Field(
        "auto",
        description="How much is compiled: 0 nothing, 3 what pays in production.",
        examples=[0],
        json_schema_extra=about(reload="process", devices=(), same=(0,), refused=NO_GRAPHS),
    )
    cudagraph_capture_sizes: Counts = Field(
        (),
        description="Batch sizes that graphs are captured for.",
        examples=[[1, 2, 4, 8]],
        json_schema_extra=about(reload="model", devices=(), unit="sequences", refused=NO_GRAPHS),
    )
