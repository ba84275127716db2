"""The places of processes that a launcher has started. Rank 0 samples for all, and the others plan the same steps."""

from __future__ import annotations

from functools import partial

from stoker.config import Resolved
from stoker.config.schema.kv_events import KVEventsConfig
from stoker.engine.api import SamplingParams
from stoker.engine.executor.launcher import LaunchedPlace
from stoker.engine.executor.local import on_cpu
from stoker.engine.executor.prepared import Prepared
from stoker.engine.executor.process import ProcessExecutor
from stoker.engine.executor.ranks import on_ranks

from .launch import Launch, launch_of
from .leading import LaunchedProcesses
from .plan_hashes import check_comparable


def join(resolved: Resolved) -> LaunchedPlace:
    """Find the place of this process, and connect to rank 0. Raises NotLaunched, JoinRefused or OSError."""
    launch = launch_of(resolved.parallel)
    return FirstPlace(resolved, launch) if launch.rank == 0 else LaterPlace(resolved, launch)


class FirstPlace:
    """The place of rank 0."""

    def __init__(self, resolved: Resolved, launch: Launch) -> None:
        self.resolved, self._launch = resolved, launch

    def check(self, sampling: SamplingParams) -> None:
        check_comparable(sampling)

    def executor(self, prepared: Prepared) -> ProcessExecutor:
        if self._launch.world_size == 1:
            return on_cpu(prepared, may_compile_later=False)
        return on_ranks(prepared, partial(LaunchedProcesses, launch=self._launch))

    def cannot_start(self, error: BaseException) -> None:
        """Does nothing: LaunchedProcesses has reported it to the others, or they see that rank 0 does not come."""


class LaterPlace:
    """The place of another rank."""

    def __init__(self, resolved: Resolved, launch: Launch) -> None:
        from .following import LaunchedRank  # imports torch

        self._rank = LaunchedRank(resolved, launch)
        without_events = {"kv_events": KVEventsConfig()}  # only rank 0 publishes: all ranks plan the same steps
        self.resolved = self._rank.resolved.model_copy(update=without_events)

    def check(self, sampling: SamplingParams) -> None:
        check_comparable(sampling)

    def executor(self, prepared: Prepared) -> ProcessExecutor:
        from .executor import on_launched_rank

        return on_launched_rank(prepared, self._rank)

    def cannot_start(self, error: BaseException) -> None:
        self._rank.cannot_start(error)
