"""An engine on one GPU, and rank 0 of several processes with a GPU each, in one stage."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...config import Resolved
from ...config.resolve.gpu import is_interpreting
from ..loop.device_step_queue import DeviceStepQueue
from ..loop.engine_core import EngineCore
from ..ranks.leading_devices import LeadingDeviceRunner, OtherDevices
from ..ranks.leading_runner import LeadingSampler
from ..ranks.memory_of_ranks import MemoryOfRanks
from ..ranks.processes import RankProcesses
from ..stores.delayed_saves import DelayedSaves
from .prepared import Prepared, limit_spinning


def on_gpu(prepared: Prepared) -> EngineCore:
    from ..runner.cuda.device_runner import DeviceRunner
    from ..runner.cuda.device_transfer import device_transfer
    from ..runner.rank_loading import ignore_padding

    if is_interpreting():
        ignore_padding()
    prepared.clock.stop()
    transfer_of = None
    if isinstance(store := prepared.store, DelayedSaves):
        transfer_of = device_transfer(store, _kept_bytes(prepared.resolved))
    parts = (prepared.resolved, prepared.phase, prepared.processors)
    runner = DeviceRunner(*parts, grammars=prepared.grammars, transfer_of=transfer_of)
    scheduler = prepared.make_scheduler(runner.num_blocks)  # the number that fits into the memory of the device
    return prepared.core(runner, scheduler, prepared.steps(runner, DeviceStepQueue), idle=runner.idle, sleeper=runner)


def _kept_bytes(resolved: Resolved) -> int:
    """Of blocks in host memory that this engine pins."""
    transfer = resolved.kv_transfer
    buffer_bytes = transfer.buffer_bytes if transfer.kv_connector == "TcpConnector" else 0  # others have their own
    return resolved.cache.kv_offloading_bytes + buffer_bytes


def on_gpus(prepared: Prepared, rank_lost: Callable[[], None]) -> EngineCore:
    limit_spinning()
    resolved = prepared.resolved
    others = RankProcesses(resolved, rank_lost, prepared.clock.note)
    try:
        from ..runner.cuda.device_runner import DeviceRunner
        from ..runner.rank_loading import rank_loading

        prepared.clock.stop()
        how: dict[str, Any] = {"grammars": prepared.grammars, "sampler_of": partial(LeadingSampler, others=others)}
        load = rank_loading(resolved, others.ranks_of, others.agree).first
        devices = OtherDevices(others)
        runner = DeviceRunner(resolved, prepared.phase, prepared.processors, load, others=devices, **how)
        together = LeadingDeviceRunner(runner, others)
        others.wait_loaded()
        scheduler = prepared.make_scheduler(runner.num_blocks)
        steps = prepared.steps(together, DeviceStepQueue)
        return prepared.core(
            together, scheduler, steps, idle=together.idle, others=others, sleeper=MemoryOfRanks(runner, others)
        )
    except BaseException:
        others.close()
        others.check()  # it may have failed because another rank has
        raise
