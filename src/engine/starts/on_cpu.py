"""An engine of one process on CPUs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

from ..loop.engine_core import EngineCore
from ..loop.thread_step_queue import ThreadStepQueue
from ..runner.kv_memory import IdleGap, reserve_kv_memory
from ..runner.prefaulted_pages import prefaulted_pages
from .prepared import Prepared, limit_spinning


def on_cpu(prepared: Prepared, *, may_compile_later: bool) -> EngineCore:
    limit_spinning()
    resolved = prepared.resolved
    kv_memory = reserve_kv_memory(resolved)
    scheduler = prepared.make_scheduler(resolved.num_kv_blocks * resolved.cache_groups.num_groups)
    with prefaulted_pages(resolved.memory.weights_bytes, kv_memory.touch_first):
        from ..runner.block_transfer import host_transfer  # torch: takes a second, and is a phase of its own
        from ..runner.loaded_model import load_on_cpu
        from ..runner.model_runner import ModelRunner

    prepared.clock.stop()
    load = partial(load_on_cpu, kv_memory=kv_memory, may_compile_later=may_compile_later)
    parts = (resolved, prepared.phase, prepared.processors, load)
    runner = ModelRunner(*parts, grammars=prepared.grammars, transfer_of=host_transfer(prepared.store))
    steps = prepared.steps(runner, ThreadStepQueue)
    caller = prepared.workplace(0, runner).call_alone
    core = prepared.core(runner, scheduler, steps, sleeper=runner, caller=caller)
    kv_memory.touch_in_background(IdleGap(_step_counter(core)))
    return core


def _step_counter(core: EngineCore) -> Callable[[], int | None]:
    core_of = weakref.ref(core)  # a weak reference: counting must not keep the engine alive

    def count() -> int | None:
        core = core_of()
        return None if core is None or core.is_stepping else core.num_steps

    return count
