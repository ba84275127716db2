"""Rank 0 of several processes: of CPUs, or of stages of any device. Those of a launcher are there already."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...config import DeploymentError
from ..loop.device_step_queue import DeviceStepQueue
from ..loop.engine_core import EngineCore
from ..loop.step_queue import StepQueue
from ..loop.thread_step_queue import ThreadStepQueue
from ..ranks.launched.launch import Launch
from ..ranks.launched.leading import LaunchedLeadingRunner, LaunchedLeadingStageRunner, LaunchedProcesses
from ..ranks.leading_runner import LeadingRunner, LeadingSampler, LeadingStageRunner
from ..ranks.memory_of_ranks import MemoryOfRanks
from ..ranks.processes import RankProcesses
from .prepared import Prepared, limit_spinning


def on_ranks(prepared: Prepared, rank_lost: Callable[[], None], launch: Launch | None) -> EngineCore:
    """It waits for kernels that must be compiled: all ranks need the same. launch: None without a launcher."""
    limit_spinning()
    resolved, clock = prepared.resolved, prepared.clock
    if resolved.parallel.nnodes > 1 or resolved.parallel.distributed_executor_backend in ("ray", "external_launcher"):
        import torch  # noqa: F401 (not in the phase that waits for other nodes)

        clock.start("nodes")
    others: RankProcesses
    if launch is None:
        others = RankProcesses(resolved, rank_lost, clock.note)
    else:
        others = LaunchedProcesses(resolved, launch, clock.note)
    try:
        return _core(prepared, others)
    except BaseException as error:
        if launch is not None:
            others.lose(f"rank 0 of the model could not start: {type(error).__name__}: {error}")
        others.close()
        if not isinstance(error, DeploymentError):
            others.check()  # it may have failed because another rank has
        raise


def _core(prepared: Prepared, others: RankProcesses) -> EngineCore:
    from ..ranks.launched.calls import LaunchedCalls
    from ..ranks.worker_calls import LeadingCalls
    from ..runner.model_runner import ModelRunner
    from ..runner.rank_loading import rank_loading
    from ..runner.rank_transfer import rank_transfer
    from ..runner.stages import FirstStageRunner

    prepared.clock.stop()
    resolved, launched = prepared.resolved, others if isinstance(others, LaunchedProcesses) else None
    loading = rank_loading(resolved, others.ranks_of, others.agree, others.prompt_ranks)
    how: dict[str, Any] = {"grammars": prepared.grammars, "captures_steps": loading.captures_steps}
    how["sampler_of"] = partial(LeadingSampler, others=others)
    if prepared.store is not None:
        how["transfer_of"] = rank_transfer(resolved, prepared.store, others.flush)
    parts = (resolved, prepared.phase, prepared.processors, loading.first)
    runner: ModelRunner
    together: LeadingRunner
    steps: StepQueue[Any]
    if resolved.num_stages == 1:
        runner = ModelRunner(*parts, **how)
        together = LaunchedLeadingRunner(runner, launched) if launched else LeadingRunner(runner, others)
        steps = prepared.steps(together, ThreadStepQueue)
    else:
        runner = first = FirstStageRunner(others.stage_link(), *parts, **how)
        staged = LaunchedLeadingStageRunner(first, launched) if launched else LeadingStageRunner(first, others)
        together = staged
        steps = prepared.steps(staged, partial(DeviceStepQueue, depth=resolved.num_stages))
    others.wait_loaded()
    scheduler = prepared.make_scheduler(runner.loaded.cache.num_blocks)
    workplace = prepared.workplace(0, runner)
    calls = LaunchedCalls(workplace, launched) if launched else LeadingCalls(workplace, others)
    more: dict[str, Any] = {"others": others, "sleeper": MemoryOfRanks(runner, others), "caller": calls.call}
    return prepared.core(together, scheduler, steps, expert_balance=lambda: runner.expert_balance, **more)
