"""An engine of one process on CPUs that shares the experts of its model with other replicas."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..loop.engine_core import EngineCore
from ..loop.thread_step_queue import ThreadStepQueue
from ..memory.neighbours import Neighbours
from .prepared import Prepared, limit_spinning


def beside_replicas(prepared: Prepared, neighbours: Neighbours) -> EngineCore:
    """It waits for kernels that must be compiled: all replicas need the same. Raises OSError without them."""
    limit_spinning()
    from ..parallel.shared_experts import SharedExperts
    from ..runner.block_transfer import host_transfer
    from ..runner.loaded_model import load_on_cpu
    from ..runner.model_runner import ModelRunner
    from ..runner.sharing_runner import SamplerOfOwnTokens, SharingRunner

    prepared.clock.stop()
    load = partial(load_on_cpu, replicas_of=partial(SharedExperts.of, neighbours=neighbours))
    parts = (prepared.resolved, prepared.phase, prepared.processors, load)
    how: dict[str, Any] = {"grammars": prepared.grammars, "transfer_of": host_transfer(prepared.store)}
    runner = ModelRunner(*parts, **how, sampler_of=SamplerOfOwnTokens)
    replicas = runner.loaded.replicas
    assert replicas is not None, "load_on_cpu has joined them"
    replicas.join()
    together = SharingRunner(runner, replicas)
    scheduler = prepared.make_scheduler(runner.loaded.cache.num_blocks)
    steps = prepared.steps(together, ThreadStepQueue)
    return prepared.core(
        together,
        scheduler,
        steps,
        sleeper=together,
        caller=prepared.workplace(0, runner).call_alone,
        is_waited_for=lambda: together.is_waited_for,
    )
