"""Section `parallel`: one model on several devices, several replicas of one model."""

from __future__ import annotations

from pydantic import Field

from .refused import with_refused
from .section import Section, about
from .types import Count


@with_refused("parallel")
class ParallelConfig(Section):
    """How a model is distributed over devices. This build computes on one."""

    max_parallel_loading_workers: Count | None = Field(
        None,
        description=(
            "Number of parts of the weights that are read at the same time. Unset, one after the other. More is faster "
            "on fast disks and network file systems, and holds that many parts in memory in addition to the model."
        ),
        examples=[4],
        json_schema_extra=about(reload="model", unit="parts"),
    )
