"""Executors of one process: on CPUs, on a GPU, and on CPUs beside replicas that have other experts of the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ...config import Resolved
from ...config.resolve.gpu import is_interpreting
from ..host.neighbours import Neighbours
from ..loop.device_step_queue import DeviceStepQueue
from ..loop.thread_step_queue import ThreadStepQueue
from ..ranks.group_runner import GroupRunner
from ..ranks.sharing_group import SharingGroup
from ..runner.kv_memory import IdleGap, KVMemory, reserve_kv_memory
from ..runner.prefaulted_pages import prefaulted_pages
from .prepared import Prepared, limit_spinning
from .process import ProcessExecutor

if TYPE_CHECKING:  # they import torch
    from ..collectives import SharedExperts
    from ..runner.runner import Runner


class CpuExecutor(ProcessExecutor):
    """Steps on the CPUs of this process. Pages of the KV cache are touched while no step runs."""

    def __init__(self, prepared: Prepared, runner: Runner, kv_memory: KVMemory) -> None:
        call = prepared.workplace(0, runner).call_alone
        super().__init__(prepared.resolved, runner, prepared.steps(runner, ThreadStepQueue), sleeper=runner, call=call)
        self._kv_memory = kv_memory

    def serves(self, count_steps: Callable[[], int | None]) -> None:
        self._kv_memory.touch_in_background(IdleGap(count_steps))


class SharedExecutor(ProcessExecutor):
    """Steps that other replicas, which have other experts of the model, compute together with this one."""

    is_shared = True

    def __init__(self, prepared: Prepared, runner: Runner, replicas: SharedExperts) -> None:
        together = GroupRunner(runner, SharingGroup(replicas))
        steps, call = prepared.steps(together, ThreadStepQueue), prepared.workplace(0, runner).call_alone
        super().__init__(prepared.resolved, runner, steps, together.execute, sleeper=runner, call=call)
        self._replicas = replicas

    @property
    def is_waited_for(self) -> bool:
        return self._replicas.is_waited_for


def on_cpu(prepared: Prepared, *, may_compile_later: bool) -> CpuExecutor:
    """may_compile_later: kernels that must be compiled replace torch while requests are served."""
    limit_spinning()
    resolved = prepared.resolved
    kv_memory = reserve_kv_memory(resolved)
    with prefaulted_pages(resolved.memory.weights_bytes, kv_memory.touch_first):
        from ..runner.block_transfer import host_transfer  # torch: takes a second, and is a separate phase
        from ..runner.load_runner import host_parts
        from ..runner.loaded_model import load_on_cpu
        from ..runner.sample_head import sample

    prepared.clock.stop()
    load = partial(load_on_cpu, kv_memory=kv_memory, may_compile_later=may_compile_later)
    parts = host_parts(sample(prepared.processors), host_transfer(prepared.store))
    return CpuExecutor(prepared, prepared.load_runner(parts, load), kv_memory)


def on_gpu(prepared: Prepared) -> ProcessExecutor:
    from ..runner.cuda.device_parts import sampling_parts
    from ..runner.cuda.device_transfer import device_transfer
    from ..runner.cuda.loading import load_on_device
    from ..runner.load_runner import host_parts
    from ..runner.rank_loading import ignore_padding
    from ..runner.sample_head import sample

    if is_interpreting():
        ignore_padding()
    prepared.clock.stop()
    transfer_of = None
    if (store := prepared.store) is not None:
        transfer_of = device_transfer(store, _kept_bytes(prepared.resolved))
    if prepared.resolved.launches_on_device:
        parts = sampling_parts(prepared.processors, transfer_of)
    else:
        parts = host_parts(sample(prepared.processors), transfer_of)
    runner = prepared.load_runner(parts, load_on_device)
    return ProcessExecutor(prepared.resolved, runner, prepared.steps(runner, DeviceStepQueue), sleeper=runner)


def _kept_bytes(resolved: Resolved) -> int:
    """Bytes of blocks in host memory that this engine pins."""
    transfer = resolved.kv_transfer
    buffer_bytes = transfer.buffer_bytes if transfer.kv_connector == "TcpConnector" else 0  # others have their own
    return resolved.cache.kv_offloading_bytes + buffer_bytes


def beside_replicas(prepared: Prepared, neighbours: Neighbours) -> SharedExecutor:
    """The executor of a replica that shares experts. Kernels that must be compiled are waited for: all replicas need
    the same ones. Raises OSError without them."""
    limit_spinning()
    from ..collectives.shared_experts import SharedExperts
    from ..runner.block_transfer import host_transfer
    from ..runner.load_runner import host_parts
    from ..runner.loaded_model import load_on_cpu
    from ..runner.sample_head import sample

    prepared.clock.stop()
    load = partial(load_on_cpu, replicas_of=partial(SharedExperts.of, neighbours=neighbours))
    parts = host_parts(sample(prepared.processors), host_transfer(prepared.store))
    runner = prepared.load_runner(parts, load)
    replicas = runner.loaded.replicas
    assert replicas is not None, "load_on_cpu has joined them"
    replicas.join()
    return SharedExecutor(prepared, runner, replicas)
