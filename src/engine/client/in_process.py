"""InProcessClient: the engine in a thread of this process, for asyncio users that do not want a second process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread

from ..api import EngineInfo
from ..host.supervision import Watchdog
from ..loop.engine_core import EngineCore
from ..loop.engine_loop import EngineLoop
from ..transport.messages import Heartbeat, Message
from .engine_client import EngineState, StreamingClient

logger = logging.getLogger(__name__)


class InProcessClient(StreamingClient):
    """The engine in a thread. A step blocks this process's other threads, and a crash ends the process."""

    def __init__(
        self,
        build: Callable[[Callable[[str], None]], EngineCore],
        *,
        on_phase: Callable[[str], None] | None = None,
    ) -> None:
        """
        build: makes the core, in the thread. Its argument is a function to call with the name of each start-up phase.
        on_phase: called with these names, on the event loop.
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

    def _poll_heartbeat(self, now: float) -> None:
        if self._core is not None:
            core = self._core
            heartbeat = Heartbeat(core.num_steps, core.is_stepping, time.process_time(), core.is_reading)
            self._watchdog.heartbeat(heartbeat, now)

    # ---- in the thread

    def _post(self, call: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(call, *args)

    def _report_phase(self, name: str) -> None:
        if self._on_phase is not None:
            self._post(self._on_phase, name)

    def _run(self, started: asyncio.Future[EngineCore]) -> None:
        try:
            core = self._build(self._report_phase)
        except Exception as error:
            self._post(_settle, started, error)
            return
        self._post(_settle, started, core)
        try:
            EngineLoop(core, _ThreadPort(self._inbox, partial(self._post, self._receive))).run()
        except Exception as error:
            logger.critical("the engine thread ends", exc_info=error)
            self._post(self._lose, EngineState.DEAD, f"the engine died: {error}")
        finally:
            core.close()


class _ThreadPort:
    """Connects the loop with its one client, which is called None: a queue in, a function out."""

    def __init__(self, inbox: SimpleQueue[Message | None], post: Callable[[Message], None]) -> None:
        self._inbox = inbox
        self._post = post
        self.is_stopped = False

    def receive(self, wait_s: float | None) -> list[tuple[None, Message]]:
        messages: list[tuple[None, Message]] = []
        with contextlib.suppress(Empty):
            message = self._inbox.get(timeout=wait_s) if wait_s != 0 else self._inbox.get_nowait()
            while message is not None:
                messages.append((None, message))
                message = self._inbox.get_nowait()
            self.is_stopped = True
        return messages

    def send(self, client: None, message: Message) -> bool:
        self._post(message)
        return True

    def broadcast(self, message: Message) -> None:
        self._post(message)


def _settle(future: asyncio.Future[EngineCore], result: EngineCore | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
