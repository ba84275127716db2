"""The seam for processes of one model that a launcher has started, each with a script of the user and an engine.

The package stoker-launcher is what `parallel.distributed_executor_backend: external_launcher` stands for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from ...config import DeploymentError, Resolved
from ...config.exit_codes import EXIT_INVALID_CONFIGURATION
from ...config.schema.parallel import ParallelConfig
from ..api import SamplingParams
from ..plugins import import_named, named_by

if TYPE_CHECKING:
    from .prepared import Prepared
    from .process import ProcessExecutor

_OPTION = "parallel.distributed_executor_backend"


class LaunchedPlace(Protocol):
    """The place of this process among those of its model."""

    resolved: Resolved  # decided values that all of the processes share

    def check(self, sampling: SamplingParams) -> None:
        """Raises InvalidRequest for parameters that the processes cannot compare."""

    def executor(self, prepared: Prepared) -> ProcessExecutor:
        """Load the model. Returns the executor of the steps that this process plans."""
        ...

    def cannot_start(self, error: BaseException) -> None:
        """Called when the start has failed. Raises RankLost if another process is the reason."""


class OnlyOffline(DeploymentError):
    """An option that a server has no use for."""

    exit_code = EXIT_INVALID_CONFIGURATION


def check_serves(parallel: ParallelConfig) -> None:
    """Raises OnlyOffline for options that belong to scripts. Another node than 0 computes for a script too."""
    if parallel.topology.is_launched:
        raise OnlyOffline(
            f"`{_OPTION}: external_launcher` is for `stoker.LLM` in a script that the "
            "launcher starts; a server starts its processes itself: remove the option, or write mp"
        )
    if parallel.has_own_worker and not parallel.topology.node:
        option = "worker_extension_cls" if parallel.worker_extension_cls else "worker_cls"
        raise OnlyOffline(
            f"`parallel.{option}` is for `stoker.LLM` in a script: a server has no call of `collective_rpc`"
        )


def join_launcher(resolved: Resolved) -> LaunchedPlace | None:
    """Find the place of this process among those that a launcher has started; None without a launcher.

    Raises PluginError without the package, DeploymentError, JoinRefused or OSError.
    """
    if not resolved.topology.is_launched:
        return None
    with named_by(_OPTION):
        join = import_named("stoker_launcher:join")
    place: LaunchedPlace = join(resolved)
    return place


@contextlib.contextmanager
def start_of(place: LaunchedPlace | None) -> Iterator[None]:
    """Wraps the start that follows `join_launcher`: a failure is reported to the other processes, which wait for this
    one. Raises RankLost if the reason of a failure is another process."""
    try:
        yield
    except BaseException as error:
        if place is not None:
            place.cannot_start(error)
        raise
