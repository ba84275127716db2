"""How a rank loads its part of a model: onto the CPU, or onto the rank's GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ...config import Resolved
from ..collectives.agreement import Agree
from .load_runner import Load
from .loaded_model import PromptRanksOf, RanksOf, load_later_stage, load_on_cpu


@dataclass(frozen=True, slots=True)
class RankLoading:
    first: Load  # the model, or its first stage
    stage: Callable[[int], Load]  # another one


def rank_loading(
    resolved: Resolved, ranks_of: RanksOf | None, agree: Agree, prompt_ranks_of: PromptRanksOf = lambda: None
) -> RankLoading:
    """
    ranks_of: makes the ranks with other parts of the same weights; None if this is the only one.
    agree: on the number of blocks.
    prompt_ranks_of: makes those that compute other tokens of the same prompts, if there are any.
    """
    if resolved.device.device == "cpu":
        return RankLoading(
            partial(load_on_cpu, ranks_of=ranks_of, prompt_ranks_of=prompt_ranks_of),
            lambda stage: partial(load_later_stage, stage=stage, ranks_of=ranks_of),
        )
    from .cuda.loading import load_later_stage_on_device, load_on_device  # triton, which CPUs do not need

    if not resolved.uses_gpus:
        ignore_padding()
    return RankLoading(
        partial(load_on_device, ranks_of=ranks_of, agree=agree),
        lambda stage: partial(load_later_stage_on_device, stage=stage, ranks_of=ranks_of, agree=agree),
    )


def ignore_padding() -> None:
    """Padding rows compute on undefined memory: where kernels are interpreted NumPy warns of that, a GPU does not."""
    warnings.filterwarnings("ignore", "(overflow|invalid value) encountered", RuntimeWarning)
