"""Section `compilation`: captured graphs of CUDA devices."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from .section import Section, about
from .types import Counts, number_or_text

Level = Annotated[Literal["auto", 0, 1, 2, 3], BeforeValidator(number_or_text)]


class CompilationConfig(Section):
    """Graph capture on CUDA devices. This build compiles no models: its own kernels take that place."""

    json_flags: ClassVar[tuple[str, ...]] = ("--compilation-config", "-cc", "-O")

    level: Level = Field(
        "auto",
        description=(
            "Whether a CUDA device captures steps as graphs, those that give each running sequence its next token "
            "before it is ready and those with prompts when it has nothing to do: 0 captures nothing and launches "
            "every kernel by itself, which starts sooner and answers more slowly; 1, 2 and 3 capture, and are all "
            "the same: what sets them apart elsewhere is torch.compile, and this build compiles nothing, since "
            "Triton kernels and captured graphs take its place. `auto` is 3 where there are graphs and 0 elsewhere."
        ),
        examples=[0],
        json_schema_extra=about(reload="model", devices=("cuda",)),
    )
    cudagraph_capture_sizes: Counts = Field(
        (),
        description=(
            "Numbers of sequences that graphs are captured for, exactly these; another name of "
            "`scheduler.cuda_graph_sizes`, where one number alone means a limit. A step is filled up to the next "
            "size, and one beyond the last runs without a graph. Unset, that option decides."
        ),
        examples=[[1, 2, 4, 8]],
        json_schema_extra=about(reload="model", devices=("cuda",), unit="sequences"),
    )
