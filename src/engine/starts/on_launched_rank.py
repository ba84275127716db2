"""Another rank than 0 of those that a launcher has started. It plans as rank 0, and samples nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..loop.device_step_queue import DeviceStepQueue
from ..loop.engine_core import EngineCore
from ..loop.step_queue import StepQueue
from ..loop.thread_step_queue import ThreadStepQueue
from ..nodes.rank_link import Loaded
from .prepared import Prepared, limit_spinning

if TYPE_CHECKING:
    from ..ranks.launched.following import LaunchedRank, LaunchedRunner, LaunchedStageRunner  # import torch
    from ..runner.model_runner import ModelRunner
    from ..runner.stages import FirstStageRunner, LaterStageRunner


def on_launched_rank(prepared: Prepared, others: LaunchedRank) -> EngineCore:
    limit_spinning()
    from ..ranks.following_sampler import FollowingSampler
    from ..ranks.launched.calls import LaunchedCalls
    from ..ranks.launched.following import LaunchedRunner, LaunchedStageRunner
    from ..runner.loaded_model import load_later_stage, load_on_cpu
    from ..runner.model_runner import ModelRunner
    from ..runner.stages import FirstStageRunner, LaterStageRunner

    prepared.clock.stop()
    resolved = prepared.resolved
    load = partial(load_on_cpu, ranks_of=others.ranks_of)
    parts = (resolved, prepared.phase, prepared.processors, load)
    how: dict[str, Any] = {"sampler_of": lambda _: FollowingSampler(others)}
    together: LaunchedRunner | LaunchedStageRunner
    steps: StepQueue[Any]
    runner: ModelRunner | LaterStageRunner
    if resolved.num_stages == 1:
        runner = only = ModelRunner(*parts, **how)
        together = launched = LaunchedRunner(only, others)
        steps = prepared.steps(launched, ThreadStepQueue)
    else:
        stage: FirstStageRunner | LaterStageRunner
        if others.stage:
            load_stage = partial(load_later_stage, stage=others.stage, ranks_of=others.ranks_of)
            stage = LaterStageRunner(resolved, others.stage, others.stage_link(), load_stage)
        else:
            stage = FirstStageRunner(others.stage_link(), *parts, **how)
        runner, together = stage, (staged := LaunchedStageRunner(stage, others))
        steps = prepared.steps(staged, partial(DeviceStepQueue, depth=resolved.num_stages))
    others.send(Loaded())
    scheduler = prepared.make_scheduler(resolved.num_kv_blocks * resolved.cache_groups.num_groups)
    calls = LaunchedCalls(prepared.workplace(others.rank, runner), others)
    return prepared.core(together, scheduler, steps, others=others, caller=calls.call)
