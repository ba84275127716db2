"""Several residual streams, from which each part of a layer reads a gated mean (Qwen4), as config.json writes them."""

from __future__ import annotations

from .config_json import ConfigJson, ModelConfigError
from .record import Record


class GatedResidual(Record):
    """A part's input is the mean over the streams of the normed stream times a gate for each element.

    What the part returns is added to each stream, times a number for each.
    """

    count: int
    rank: int  # of the projection of the gates


def read_gated_residual(config: ConfigJson) -> GatedResidual:
    count = config.count("hc_count")
    if not 2 <= count <= 64:
        raise ModelConfigError(f"`hc_count` is {count}; it must be a number of streams from 2 to 64")
    return GatedResidual(count=count, rank=config.count("hc_lowrank"))
