"""EngineProcessClient: the engine in a separate process, which is restarted when it dies."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..api import EngineDead, EngineInfo, EngineStats, InvalidRequest, SleepError
from ..host.supervision import STALL_LIMIT_S, IdleWatch, RestartBudget, Watchdog
from ..transport.messages import (
    Abort,
    ExitReason,
    FreeMemory,
    Heartbeat,
    MemoryFreed,
    MemoryTaken,
    Message,
    Phase,
    Ready,
    TakeMemory,
)
from .child import Child, EngineChild
from .engine_client import EngineStartFailed, EngineState, StreamingClient
from .sleep import FREE_MEMORY, SleepPolicy, Waking, watch_idle

DRAIN_POLL_S = 0.05
MEMORY_LIMIT_S = 120.0  # for the step that runs to end, and for weights to be copied
COMMAND = (sys.executable, "-m", f"{__package__.rpartition('.')[0]}.process")
logger = logging.getLogger(__name__)


class EngineProcessClient(StreamingClient):
    def __init__(
        self,
        config: str,
        *,
        environment: Mapping[str, str] | None = None,
        max_restarts: int = 0,
        on_phase: Callable[[str], None] | None = None,
        command: Sequence[str] = COMMAND,
        stall_limit_s: float = STALL_LIMIT_S,
        is_shared: bool = False,
        sleep_policy: SleepPolicy | None = None,
        child_of: Callable[[Callable[[Message], None]], Child] | None = None,
    ) -> None:
        """
        config: the Resolved as JSON, secrets left out: the engine needs none.
        environment: of the engine process; None: of this process.
        max_restarts: maximum number of restarts in 10 minutes.
        on_phase: called with the name of each start-up phase, at every start.
        command: starts the engine process.
        is_shared: whether other processes are its clients too (attached.py).
        sleep_policy: when it sleeps by itself; None: never.
        child_of: what makes a start, of the function that takes its messages; None: a process of this machine.
        """
        super().__init__(stall_limit_s)
        self._config = config
        self.environment = environment
        self._budget = RestartBudget(max_restarts)
        self._on_phase = on_phase
        self._command = command
        self._is_shared = is_shared
        self.on_change: Callable[[], None] = lambda: None  # called after each change of `state`
        self._child_of = child_of or self._local_child
        self._child: Child | None = None
        self._ready: asyncio.Future[EngineInfo] | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._policy = sleep_policy or SleepPolicy()
        self._sleep_level = 0
        self._wakes_on_request = False
        self._transition = asyncio.Lock()  # held while it goes to sleep or wakes up
        self._waking = Waking(self._wake)
        self._moves: deque[asyncio.Future[str]] = deque()  # of memory, oldest first: what keeps the engine from it
        self._sleeps: set[asyncio.Task[None]] = set()  # asked for
        self._idle = IdleWatch(0.0, self._policy.after_s or 0.0)

    @property
    def pid(self) -> int | None:
        """Process id of the engine, if it runs."""
        return None if self._child is None else self._child.pid

    @property
    def paths(self) -> list[Path]:
        """Paths of the sockets of a shared engine that runs."""
        return [] if self._child is None else self._child.paths

    async def start(self) -> EngineInfo:
        """Raises EngineStartFailed; then no process is left."""
        try:
            info = await self._launch()
        except EngineDead as error:
            self._lose(EngineState.DEAD, error.reason)
            raise
        self._supervision = asyncio.create_task(self._supervise())
        self._tasks = [asyncio.create_task(self._watch_progress())]
        if self._policy.after_s is not None:
            self._idle.active(asyncio.get_running_loop().time())
            going = partial(self._go_to_sleep, waits=False, wakes_on_request=True)
            watching = watch_idle(self._policy, self._idle, lambda: self._is_idle, going)
            self._tasks.append(asyncio.create_task(watching))
        return info

    async def close(self) -> None:
        self._streams.abort_all()
        await self._waking.cancel()
        self._tasks += self._sleeps
        if self._supervision is not None:
            self._tasks.append(self._supervision)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._child is not None:
            await self._child.stop()
            self._child = None
        if self._state is not EngineState.DEAD:
            self._set(EngineState.DEAD, "the engine was stopped")

    # ---- sleep

    @property
    def sleep_level(self) -> int:
        return self._sleep_level

    @property
    def is_available(self) -> bool:
        return self._state is EngineState.READY or (self._state is EngineState.SLEEPING and self._wakes_on_request)

    @property
    def _is_idle(self) -> bool:
        return self._state is EngineState.READY and not len(self._streams) and not self._transition.locked()

    async def sleep(self, level: int, *, waits: bool = False) -> None:
        """See EngineClient.sleep. A caller that is cancelled does not end it."""
        going = asyncio.create_task(self._go_to_sleep(level, waits=waits, wakes_on_request=False))
        self._sleeps.add(going)
        going.add_done_callback(self._sleeps.discard)
        await asyncio.shield(going)

    async def _go_to_sleep(self, level: int, *, waits: bool, wakes_on_request: bool) -> None:
        async with self._transition:
            if not self._sleep_level and self._state is not EngineState.READY:
                raise EngineDead(self._reason)
            self._wakes_on_request = wakes_on_request
            wakes = "the next request" if wakes_on_request else "POST /wake_up"
            level = max(level, self._sleep_level)
            self._set(EngineState.SLEEPING, f"the engine sleeps (level {level}); {wakes} wakes it")
            if level == self._sleep_level:
                return
            while waits and len(self._streams):  # noqa: ASYNC110 (streams can only be polled)
                await asyncio.sleep(DRAIN_POLL_S)
            if self._state is not EngineState.SLEEPING:  # the process has ended meanwhile, and is started again
                raise EngineDead(self._reason)
            handles = self._streams.handles
            self._streams.fail_all(EngineDead, self._reason)
            if level == FREE_MEMORY:
                self._send(Abort(handles))
                await self._free_memory()
            else:
                await self._end_process()
            self._sleep_level = level

    async def _free_memory(self) -> None:
        """Raises SleepError if it cannot, EngineDead if the process ends meanwhile or does not answer."""
        try:
            refusal = await self._move_memory(FreeMemory())
        except TimeoutError:
            self._ask(TakeMemory()).cancel()  # it may free its memory later
            self._set(EngineState.READY)
            raise EngineDead(f"the engine has not answered for {MEMORY_LIMIT_S:g} seconds") from None
        if refusal:
            self._set(EngineState.READY)
            raise SleepError(refusal)

    async def _take_memory(self) -> None:
        """Raises EngineDead."""
        try:
            refusal = await self._move_memory(TakeMemory())
        except TimeoutError:
            refusal = f"the engine has not answered for {MEMORY_LIMIT_S:g} seconds"
        if refusal:
            raise EngineDead(refusal)

    async def _move_memory(self, message: FreeMemory | TakeMemory) -> str:
        """Why the engine does not, empty if it does. Raises EngineDead if the process ends meanwhile, TimeoutError."""
        return await asyncio.wait_for(self._ask(message), MEMORY_LIMIT_S)

    def _ask(self, message: FreeMemory | TakeMemory) -> asyncio.Future[str]:
        """Returns its answer. The engine answers all in their order, and late ones too."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._moves.append(answer)
        self._send(message)
        return answer

    async def _end_process(self) -> None:
        if self._supervision is not None:
            self._supervision.cancel()
            await asyncio.gather(self._supervision, return_exceptions=True)
        if self._child is not None:
            await self._child.stop()
            self._child = None
        self._moves.clear()
        self._fail_calls(self._reason)
        self._stats = EngineStats()

    async def wake_up(self) -> None:
        await self._waking.done()

    async def _wake(self) -> None:
        async with self._transition:
            level = self._sleep_level
            if not level:
                return
            try:
                await (self._take_memory() if level == FREE_MEMORY else self._launch())
            except EngineDead as error:
                if self._sleep_level:  # else its process has ended meanwhile, and is started again
                    self._set(EngineState.SLEEPING, f"the engine could not be woken: {error.reason}")
                raise
            if level == FREE_MEMORY:
                self._set(EngineState.READY)
            else:
                self._supervision = asyncio.create_task(self._supervise())
            self._sleep_level = 0

    async def _prepare(self) -> None:
        self._idle.active(asyncio.get_running_loop().time())
        if self._state is EngineState.SLEEPING and self._wakes_on_request:
            await self.wake_up()

    # ---- the process

    async def _launch(self) -> EngineInfo:
        """Start a process and wait until it is ready. Raises EngineStartFailed."""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        child = self._child = self._child_of(self._receive)
        try:
            await child.start()
            ended = asyncio.ensure_future(child.ended())
            waits: list[asyncio.Future[Any]] = [self._ready, ended]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
        except OSError as error:
            self._child = None
            raise EngineStartFailed(ExitReason(type(error).__name__, f"cannot start the engine: {error}", 4)) from None
        except asyncio.CancelledError:
            await child.stop()
            raise
        if not self._ready.done():
            self._child = None
            raise EngineStartFailed(await child.ended())
        self._info = self._ready.result()
        self._watchdog = Watchdog(loop.time(), limit_s=self._stall_limit_s)
        self._set(EngineState.READY)
        return self._info

    def _local_child(self, receive: Callable[[Message], None]) -> Child:
        return EngineChild(self._command, self._config, receive, self.environment, is_shared=self._is_shared)

    async def _supervise(self) -> None:
        try:
            await self._keep_alive()
        except Exception as error:
            logger.critical("the supervision of the engine ended", exc_info=error)
            self._lose(EngineState.DEAD, f"the engine cannot be watched: {type(error).__name__}")

    async def _keep_alive(self) -> None:
        """Wait for the process to end, and restart it while the budget allows."""
        now = asyncio.get_running_loop().time
        while self._child is not None:
            exit_reason = await self._child.ended()
            self._child = None
            reason = f"the engine died: {exit_reason.message}"
            while self._budget.take(now()):
                logger.error("%s; restarting it", reason)
                self._lose(EngineState.RESTARTING, reason)
                try:
                    await self._launch()
                    logger.warning("the engine is ready again")
                    break
                except EngineDead as error:
                    reason = f"the engine died and could not be restarted: {error.reason}"
            else:
                logger.critical("%s; it stays down (%d restarts are allowed)", reason, self._budget.max_restarts)
                self._lose(EngineState.DEAD, reason)

    def _lose(self, state: EngineState, reason: str) -> None:
        super()._lose(state, reason)
        self._sleep_level = 0
        while self._moves:
            answer = self._moves.popleft()
            if not answer.done():
                answer.set_exception(EngineDead(reason))

    def _set(self, state: EngineState, reason: str = "") -> None:
        super()._set(state, reason)
        self.on_change()

    def _send(self, message: Message) -> None:
        if self._child is None:
            return
        try:
            self._child.send(message)
        except OverflowError:
            raise InvalidRequest("token ids must be 32-bit integers", param="prompt", code="invalid_token_id") from None

    def _receive(self, message: Message) -> None:
        match message:
            case Phase():
                if self._on_phase is not None:
                    self._on_phase(message.name)
            case Ready():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(message.info)
            case MemoryFreed(error) | MemoryTaken(error):
                answer = self._moves.popleft()
                if not answer.done():  # in time
                    answer.set_result(error)
            case Heartbeat():
                if self._state is not EngineState.STARTING:
                    self._watchdog.heartbeat(message, asyncio.get_running_loop().time())
            case _:
                super()._receive(message)
