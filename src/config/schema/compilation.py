"""Section `compilation`: captured graphs of CUDA devices."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from .section import Section, about
from .types import Counts, number_or_text

Level = Annotated[Literal["auto", 0, 1, 2, 3], BeforeValidator(number_or_text)]


class CompilationConfig(Section):
    """Graph capture on CUDA devices. This build compiles no models; it has its own kernels instead."""

    json_flags: ClassVar[tuple[str, ...]] = ("--compilation-config", "-cc", "-O")

    level: Level = Field(
        "auto",
        description=(
            "Whether steps on a CUDA device are captured as graphs. 0 captures nothing and launches every kernel "
            "separately, which starts sooner and answers more slowly. 1, 2 and 3 capture and are all the same: other "
            "engines use them for levels of torch.compile, which this build does not use. Steps that compute one token "
            "per running sequence are captured before the server is ready; steps with prompts are captured while the "
            "engine is idle. `auto` is 3 where graphs can be captured and 0 elsewhere."
        ),
        examples=[0],
        json_schema_extra=about(devices=("cuda",), aliases=("--optimization-level",)),
    )
    cudagraph_capture_sizes: Counts = Field(
        (),
        description=(
            "Numbers of sequences that graphs are captured for, exactly these. Another name of "
            "`scheduler.cuda_graph_sizes`, where a single number is a maximum. A step is padded to the next size; a "
            "step larger than the last size runs without a graph. Unset, `scheduler.cuda_graph_sizes` applies."
        ),
        examples=[[1, 2, 4, 8]],
        json_schema_extra=about(devices=("cuda",), unit="sequences", aliases=("--cudagraph-capture-sizes",)),
    )
