"""EngineLoop: the loop that runs an EngineCore. Takes messages, steps, and sends outputs and statistics.

The engine process, the engine thread of InProcessClient and `LLM` run this loop; they differ in their Port.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from ..api import AdapterError, EngineRequest, EngineStats, ProfileError
from ..transport.messages import (
    Abort,
    AdapterChanged,
    FreeMemory,
    Hello,
    LoadAdapter,
    MemoryFreed,
    MemoryTaken,
    Message,
    Profile,
    Profiled,
    Ready,
    Stats,
    Submit,
    SubmitMany,
    TakeMemory,
    UnloadAdapter,
)
from .dispatch import Dispatch
from .engine_core import EngineCore

STATS_INTERVAL_S = 1.0
BLOCKED_RETRY_S = 0.02  # work that cannot be scheduled: look again soon, without spinning
logger = logging.getLogger(__name__)
Client = TypeVar("Client", bound=Hashable)


class Port(Protocol[Client]):
    """Connects the loop with its clients. Called from the loop's thread."""

    @property
    def is_stopped(self) -> bool:
        """The loop ends."""
        ...

    def receive(self, wait_s: float | None) -> Iterable[tuple[Client, Message]]:
        """All messages that have arrived, with their clients. If there are none, wait for the first one.

        wait_s: how long at most; None: until one arrives or the port is stopped.
        """
        ...

    def send(self, client: Client, message: Message) -> bool:
        """Returns whether the client still exists."""
        ...

    def broadcast(self, message: Message) -> None:
        """Send a message to every client."""
        ...


class EngineLoop(Generic[Client]):
    def __init__(self, core: EngineCore, port: Port[Client], clock: Callable[[], float] = time.monotonic) -> None:
        self._core = core
        self._port = port
        self._clock = clock
        self._dispatch: Dispatch[Client] = Dispatch(core)
        self._freeing: list[Client] = []  # wait until no request is left
        self._loading: list[tuple[Client, int, Future[None]]] = []  # calls that are not answered, with their numbers
        self._sent_stats = EngineStats()
        self._stats_sent_at = clock()

    def run(self) -> None:
        """Run until the port is stopped. Raises what EngineCore.step and the port raise."""
        wait_s: float | None = 0.0  # work that was postponed at the start begins before the first request
        while True:
            for client, message in self._port.receive(wait_s):
                self._take(client, message)
            if self._port.is_stopped:
                return
            wait_s = self._step()
            if self._loading:
                self._answer_loaded()
                wait_s = BLOCKED_RETRY_S if wait_s is None else wait_s
            self._send_stats()

    def forget(self, client: Client) -> None:
        """Abort all requests of a client."""
        self._dispatch.forget(client)

    def _take(self, client: Client, message: Message) -> None:
        match message:
            case Submit(handle, request):
                self._submit(client, handle, request)
            case SubmitMany(handles, requests):
                for handle, request in zip(handles, requests, strict=True):
                    self._submit(client, handle, request)
            case Abort():
                self._dispatch.abort(client, message)
            case Profile():
                self._port.send(client, self._profile(message))
            case FreeMemory():
                self._freeing.append(client)
            case TakeMemory():
                self._keep_memory()
                self._port.send(client, MemoryTaken(_refusal(self._core.take_memory)))
            case LoadAdapter(number, ref):
                self._loading.append((client, number, self._core.load_adapter(ref)))
            case UnloadAdapter(number, digest):
                self._core.unload_adapter(digest)
                self._port.send(client, AdapterChanged(number))
            case Hello():
                self._port.send(client, Ready(self._core.info))
            case _:
                logger.error("a client sent %s, which only an engine may send", type(message).__name__)

    def _submit(self, client: Client, handle: int, request: EngineRequest) -> None:
        refused = self._dispatch.submit(client, handle, request)
        if refused is not None:
            self._port.send(client, refused)

    def _answer_loaded(self) -> None:
        calls, self._loading = self._loading, []
        for client, number, reading in calls:
            if reading.done():
                self._port.send(client, _loaded(number, reading))
            else:
                self._loading.append((client, number, reading))

    def _profile(self, message: Profile) -> Profiled:
        profiler = self._core.profiler
        if profiler is None:
            return Profiled(error="this engine has no profiler: `observability.profiler_config` is not set")
        try:
            if not message.is_start:
                return Profiled(str(profiler.stop()))
            profiler.start()
            return Profiled()
        except ProfileError as error:
            return Profiled(error=str(error))

    def _step(self) -> float | None:
        """Run one step, or postponed work. Returns how long to wait for messages then, as Port.receive takes it."""
        if not self._core.has_work:
            self._free_memory()
            return 0.0 if self._core.assist() or self._core.idle() else None
        num_steps = self._core.num_steps
        for client, outputs in self._dispatch.step().items():
            if not self._port.send(client, outputs):
                self._dispatch.forget(client)
        return 0.0 if self._core.num_steps != num_steps else BLOCKED_RETRY_S

    def _free_memory(self) -> None:
        clients, self._freeing = self._freeing, []
        for client in clients:
            self._port.send(client, MemoryFreed(_refusal(self._core.free_memory)))

    def _keep_memory(self) -> None:
        """Do not free what was still to be freed."""
        clients, self._freeing = self._freeing, []
        for client in clients:
            self._port.send(client, MemoryFreed("the engine was woken up before it slept"))

    def _send_stats(self) -> None:
        """Send statistics after each change of load and, if they have changed, before the loop goes idle and every
        STATS_INTERVAL_S."""
        stats, sent, now = self._core.stats, self._sent_stats, self._clock()
        load_changed = (stats.num_running, stats.num_waiting) != (sent.num_running, sent.num_waiting)
        is_due = not self._core.has_work or now - self._stats_sent_at >= STATS_INTERVAL_S
        if load_changed or (is_due and stats != sent):
            self._port.broadcast(Stats(stats))
            self._sent_stats, self._stats_sent_at = stats, now


def _loaded(number: int, reading: Future[None]) -> AdapterChanged:
    """The answer to a call that loads an adapter."""
    error = reading.exception()
    if error is None:
        return AdapterChanged(number)
    return AdapterChanged(number, str(error), error.code if isinstance(error, AdapterError) else "adapter_unreadable")


def _refusal(change: Callable[[], None]) -> str:
    """What keeps the engine from freeing or taking memory; empty if it has done so."""
    try:
        change()
    except MemoryError as error:
        return str(error)
    return ""
