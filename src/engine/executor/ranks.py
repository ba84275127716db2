"""RanksExecutor: rank 0 of several processes, which computes each step together with the other ranks.

The ranks are on CPUs, on GPUs, or stages of a pipeline on either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ...config import Resolved
from ..loop.device_step_queue import DeviceStepQueue
from ..loop.step_queue import StepQueue
from ..ranks.adapters_of_ranks import OthersOfRanks
from ..ranks.followers import in_step
from ..ranks.group_runner import GroupRunner, LeadingGroup
from ..ranks.leading_devices import OtherDevices
from ..ranks.memory_of_ranks import MemoryOfRanks
from ..ranks.processes import RankProcesses
from ..worker import WorkerCall
from .prepared import Prepared, limit_spinning
from .process import ProcessExecutor

if TYPE_CHECKING:  # they import torch
    from ..runner.runner import Runner


class StartRanks(Protocol):
    """Starts the other ranks of a model."""

    def __call__(self, resolved: Resolved, *, report: Callable[[str], None]) -> RankProcesses:
        """report: called with what this waits for."""
        ...


class RanksExecutor(ProcessExecutor):
    """Steps of several processes. None of them can follow when one process has ended."""

    def __init__(
        self,
        prepared: Prepared,
        others: RankProcesses,
        own: Runner,
        together: GroupRunner,
        steps: StepQueue[Any],
        call: WorkerCall | None = None,
    ) -> None:
        """
        Args:
            own: the runner of rank 0.
            together: computes the steps of `own` together with the others.
            call: calls a method of the workers of all ranks; None if there are none.
        """
        sleeper = MemoryOfRanks(own, others)
        super().__init__(prepared.resolved, own, steps, together.execute, sleeper=sleeper, call=call)
        self._others, self._own = others, own
        if (adapters := own.loaded.adapters) is not None:
            adapters.others = OthersOfRanks(others)
        self._moves_experts = prepared.resolved.parallel.enable_eplb

    def check(self) -> None:
        self._others.check()

    @property
    def expert_balance(self) -> float | None:
        return self._own.expert_balance if self._moves_experts else None

    def close(self) -> None:
        self._others.close()

    def abandon(self, error: BaseException) -> None:
        self._others.cannot_start(error)


class DeviceRanksExecutor(RanksExecutor):
    """Steps of ranks that have a GPU each. All of them capture graphs while no request runs."""

    def warm_up(self) -> None:
        with in_step(self._others):
            self._own.warm_up()

    def idle(self) -> bool:
        with in_step(self._others):
            return self._own.idle()


def on_ranks(prepared: Prepared, start: StartRanks) -> RanksExecutor:
    """The executor of rank 0. Kernels that must be compiled are waited for: all ranks need the same ones."""
    limit_spinning()
    resolved, clock = prepared.resolved, prepared.clock
    if resolved.topology.spans_machines:
        import torch  # noqa: F401 (not in the phase that waits for other nodes)

        clock.start("nodes")
    others = start(resolved, report=clock.note)
    try:
        return _on_gpus(prepared, others) if resolved.launches_on_device else _on_ranks(prepared, others)
    except BaseException as error:
        others.cannot_start(error)
        raise


def _on_gpus(prepared: Prepared, others: RankProcesses) -> RanksExecutor:
    """The executor of ranks that have a GPU each, all in one stage."""
    from ..ranks.heads import lead
    from ..runner.cuda.device_parts import sampling_parts
    from ..runner.rank_loading import rank_loading

    prepared.clock.stop()
    resolved = prepared.resolved
    loading = rank_loading(resolved, others.ranks_of, others.agree)
    processors, devices = prepared.processors, OtherDevices(others)
    parts = sampling_parts(processors, host_head=lead(others, processors), others=devices)
    runner = prepared.load_runner(parts, loading.first)
    others.wait_loaded()
    together = GroupRunner(runner, LeadingGroup(others, announces=False))  # the runner chooses how a step is launched
    return DeviceRanksExecutor(prepared, others, runner, together, prepared.steps(together, DeviceStepQueue))


def _on_ranks(prepared: Prepared, others: RankProcesses) -> RanksExecutor:
    from ..ranks.heads import lead
    from ..runner.heads import around
    from ..runner.load_runner import host_parts
    from ..runner.rank_loading import rank_loading
    from ..runner.rank_transfer import rank_transfer

    prepared.clock.stop()
    resolved = prepared.resolved
    loading = rank_loading(resolved, others.ranks_of, others.agree, others.prompt_ranks)
    transfer_of = None if prepared.store is None else rank_transfer(resolved, prepared.store)
    head, has_stages = lead(others, prepared.processors), resolved.num_stages > 1
    if has_stages:
        head = around(others.stage_link(), head)
    runner = prepared.load_runner(host_parts(head, transfer_of, announce=others.send), loading.first)
    together = GroupRunner(runner, others.group(has_stages=has_stages))
    others.wait_loaded()
    call = others.caller(prepared.workplace(0, runner))
    return RanksExecutor(prepared, others, runner, together, prepared.steps_of_stages(together), call)
