"""InProcessClient: the engine in a thread of this process, for asyncio users that want no second process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread

from .api import EngineInfo, EngineStats
from .client import EngineState, StreamingClient
from .dispatch import Dispatch
from .engine_core import EngineCore
from .supervision import Watchdog
from .wire import Abort, Beat, Message, Stats, Submit

BLOCKED_RETRY_S = 0.02  # work that cannot be scheduled: look again soon, without spinning
logger = logging.getLogger(__name__)


class InProcessClient(StreamingClient):
    """The engine in a thread. A step holds up this process's other threads, and a crash takes the process with it."""

    def __init__(
        self,
        build: Callable[[Callable[[str], None]], EngineCore],
        *,
        on_phase: Callable[[str], None] | None = None,
    ) -> None:
        """
        build: makes the core, in the thread; it is given a function that takes the name of each start-up phase.
        on_phase: is told these names, on the event loop.
        """
        super().__init__()
        self._build = build
        self._on_phase = on_phase
        self._inbox: SimpleQueue[Message | None] = SimpleQueue()  # None: stop
        self._thread: Thread | None = None
        self._core: EngineCore | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> EngineInfo:
        """Raises what `build` raises."""
        self._loop = asyncio.get_running_loop()
        started: asyncio.Future[EngineCore] = self._loop.create_future()
        self._thread = Thread(target=self._run, args=(started,), name="engine", daemon=True)
        self._thread.start()
        try:
            self._core = await started
        except Exception as error:
            self._lose(EngineState.DEAD, str(error))
            raise
        self._info = self._core.info
        self._watchdog = Watchdog(self._loop.time(), limit_s=self._stall_limit_s)
        self._watch = asyncio.create_task(self._watch_progress())
        self._set(EngineState.READY)
        return self._info

    async def close(self) -> None:
        self._streams.abort_all()
        if self._watch is not None:
            self._watch.cancel()
        if self._thread is not None:
            self._inbox.put(None)
            await asyncio.to_thread(self._thread.join, 5.0)
            self._thread = None
        if self._state is not EngineState.DEAD:
            self._set(EngineState.DEAD, "the engine was stopped")

    def _send(self, message: Message) -> None:
        self._inbox.put(message)

    def _look(self, now: float) -> None:
        if self._core is not None:
            self._watchdog.beat(Beat(self._core.num_steps, self._core.is_stepping, time.process_time()), now)

    # ---- in the thread

    def _post(self, call: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(call, *args)

    def _tell_phase(self, name: str) -> None:
        if self._on_phase is not None:
            self._post(self._on_phase, name)

    def _run(self, started: asyncio.Future[EngineCore]) -> None:
        try:
            core = self._build(self._tell_phase)
        except Exception as error:
            self._post(_settle, started, error)
            return
        self._post(_settle, started, core)
        try:
            self._work(core)
        except Exception as error:
            logger.critical("the engine thread ends", exc_info=error)
            self._post(self._lose, EngineState.DEAD, f"the engine died: {error}")

    def _work(self, core: EngineCore) -> None:
        dispatch: Dispatch[None] = Dispatch(core)
        sent = EngineStats()
        wait_s: float | None = 0.0  # what was put off at the start begins before anybody asks for anything
        while True:
            for message in self._arrived(wait_s):
                if message is None:
                    return
                if isinstance(message, Submit):
                    refused = dispatch.submit(None, message)
                    if refused is not None:
                        self._post(self._receive, refused)
                elif isinstance(message, Abort):
                    dispatch.abort(None, message)
            wait_s = None
            if core.has_work:
                before = core.num_steps
                for outputs in dispatch.step().values():
                    self._post(self._receive, outputs)
                wait_s = 0.0 if core.num_steps != before else BLOCKED_RETRY_S
            elif core.idle():
                wait_s = 0.0
            stats = core.stats
            if stats != sent:
                self._post(self._receive, Stats(stats))
                sent = stats

    def _arrived(self, wait_s: float | None) -> list[Message | None]:
        """All messages that are there, after waiting for the first of them (None: for as long as it takes)."""
        messages: list[Message | None] = []
        with contextlib.suppress(Empty):
            messages.append(self._inbox.get(timeout=wait_s) if wait_s != 0 else self._inbox.get_nowait())
            while True:
                messages.append(self._inbox.get_nowait())
        return messages


def _settle(future: asyncio.Future[EngineCore], result: EngineCore | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
