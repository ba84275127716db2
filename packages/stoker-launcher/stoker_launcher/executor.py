"""LaunchedExecutor: another rank than 0 of those that a launcher has started. It plans as rank 0, and samples none."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from stoker.engine.executor.prepared import Prepared, limit_spinning
from stoker.engine.executor.process import ProcessExecutor
from stoker.engine.ranks.group_runner import GroupRunner
from stoker.engine.transport.rank_messages import Loaded

if TYPE_CHECKING:  # they import torch
    from stoker.engine.runner.runner import Runner

    from .following import LaunchedRank


class LaunchedExecutor(ProcessExecutor):
    """Steps that all ranks plan, and in which this one computes its part."""

    def __init__(self, prepared: Prepared, others: LaunchedRank, own: Runner, together: GroupRunner) -> None:
        """own: the runner of this rank. together: computes the steps of `own` together with the others."""
        from .calls import LaunchedCalls

        resolved = prepared.resolved
        calls = LaunchedCalls(prepared.workplace(others.rank, own), others)
        super().__init__(resolved, own, prepared.steps_of_stages(together), together.execute, call=calls.call)
        self.num_blocks = resolved.num_kv_blocks * resolved.cache_groups.num_groups  # as rank 0, which has other layers
        self._others = others

    def check(self) -> None:
        self._others.check()

    def close(self) -> None:
        self._others.close()

    def abandon(self, error: BaseException) -> None:
        """Does nothing: `start_of` reports the failure to the other ranks."""


def on_launched_rank(prepared: Prepared, others: LaunchedRank) -> LaunchedExecutor:
    limit_spinning()
    from stoker.engine.ranks.heads import follow
    from stoker.engine.runner.heads import around
    from stoker.engine.runner.load_runner import host_parts, stage_parts
    from stoker.engine.runner.loaded_model import load_later_stage, load_on_cpu

    from .following import LaunchedGroup

    prepared.clock.stop()
    ranks_of, has_stages = others.ranks_of, prepared.resolved.num_stages > 1
    if others.stage:
        load_stage = partial(load_later_stage, stage=others.stage, ranks_of=ranks_of)
        runner = prepared.load_runner(stage_parts(others.stage_link(), others.stage), load_stage, samples=False)
    else:
        head = around(others.stage_link(), follow(others)) if has_stages else follow(others)
        load = partial(load_on_cpu, ranks_of=ranks_of)
        runner = prepared.load_runner(host_parts(head), load, samples=False)
    together = GroupRunner(runner, LaunchedGroup(others, awaits_finish=has_stages and not others.stage))
    executor = LaunchedExecutor(prepared, others, runner, together)
    others.send(Loaded())
    return executor
