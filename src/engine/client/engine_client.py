"""The server's side of the engine: submit, stream, abort, and the state of the engine.

EngineClient is the contract. Its implementations are process.py (an engine process, restarted when it dies),
attached.py (one that another process supervises), in_process.py (a thread of this process), and replicated.py (several
engines that serve the same model).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from enum import StrEnum
from typing import Protocol

from ..api import (
    AdapterError,
    AdapterRef,
    EngineDead,
    EngineInfo,
    EngineOutput,
    EngineRequest,
    EngineStats,
    ProfileError,
    SleepError,
)
from ..host.supervision import STALL_LIMIT_S, Watchdog
from ..loop.dispatch import refusal
from ..transport.messages import (
    Abort,
    AdapterChanged,
    ExitReason,
    LoadAdapter,
    Message,
    Outputs,
    Profile,
    Profiled,
    Refused,
    Stats,
    Submit,
    UnloadAdapter,
)
from .pooled_call import OnOutput, PooledCall, no_listener
from .streams import Streams

WATCH_INTERVAL_S = 0.5
logger = logging.getLogger(__name__)


class EngineState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"  # died, a new process is loading
    SLEEPING = "sleeping"  # its memory is free, until it is woken
    STALLED = "stalled"  # it runs and has work, but makes no progress
    DEAD = "dead"  # it will not be restarted


class EngineClient(Protocol):
    """One engine, in a process or in a thread. Call every method on the event loop that started it."""

    @property
    def state(self) -> EngineState: ...

    def state_of(self, rank: int | None) -> EngineState:
        """State of the replica that a request names; None names none."""
        ...

    @property
    def reason(self) -> str:
        """Why the state is not READY; empty when it is."""
        ...

    @property
    def info(self) -> EngineInfo:
        """What the engine has measured at its start. Raises RuntimeError before `start` has returned."""
        ...

    @property
    def stats(self) -> EngineStats: ...

    async def start(self) -> EngineInfo:
        """Start the engine and wait until it can serve. Raises EngineDead with the cause."""
        ...

    def generate(self, request: EngineRequest) -> AsyncIterator[EngineOutput]:
        """Outputs of one request (sampling.n is 1), the last with a finish_reason. Closing the iterator aborts it.

        Raises, at the first step: InvalidRequest, QueueFull, EngineDead. EngineDead may also come later.
        """
        ...

    async def pool(self, requests: Sequence[EngineRequest], on_output: OnOutput = no_listener) -> list[EngineOutput]:
        """The output of each of these requests, which are pooled. Cancelling it aborts all of them.

        on_output: is called with the index of each request and its output when it arrives, also if the call fails or is
            cancelled later.
        An output with FinishReason.ERROR says why its request has none. Raises InvalidRequest if one can never be
        served, QueueFull and EngineDead.
        """
        ...

    async def profile(self, *, is_start: bool) -> str:
        """Start or end a profile of the steps. Returns the file of its trace at the end.

        Raises ProfileError if that is not possible now, EngineDead.
        """
        ...

    async def sleep(self, level: int, *, waits: bool = False) -> None:
        """Free memory until `wake_up`. Requests are refused from now on with EngineDead; open ones fail with it.

        level: 1 frees what only steps need, 2 everything (sleep.py). An engine that sleeps can sleep deeper. waits: for
        open requests to end, instead. Raises SleepError if it cannot, and EngineDead if it is not ready.
        """
        ...

    async def wake_up(self) -> None:
        """Return when it can serve. Raises EngineDead with the cause if it cannot; it sleeps on then."""
        ...

    async def load_adapter(self, ref: AdapterRef) -> None:
        """Read an adapter in every process of the model, so that its first request need not wait for it.

        A request with an adapter that was not loaded, or was forgotten, reads it. Raises AdapterError if its files do
        not fit the model or cannot be read, EngineDead.
        """
        ...

    async def unload_adapter(self, digest: str) -> None:
        """Forget the weights of an adapter, as soon as no running request uses them. An engine that sleeps or is
        stalled forgets them when it is ready again. Raises EngineDead."""
        ...

    @property
    def sleep_level(self) -> int:
        """How deeply the engine sleeps; 0: awake."""
        ...

    @property
    def is_available(self) -> bool:
        """Whether it serves a request that arrives now: it is ready, or the request wakes it."""
        ...

    async def close(self) -> None:
        """Stop the engine; open requests end with FinishReason.ABORT."""
        ...


class EngineStartFailed(EngineDead):
    """The engine never became ready. `error` is the class of the cause, `exit_code` the exit status of the command."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__(reason.message)
        self.error = reason.error
        self.exit_code = reason.exit_code or 1


class StreamingClient(ABC):
    """State and streams, and messages for them: the part that both kinds of engine share."""

    def __init__(self, stall_limit_s: float = STALL_LIMIT_S) -> None:
        self._state = EngineState.STARTING
        self._reason = "the engine is starting"
        self._info: EngineInfo | None = None
        self._stats = EngineStats()
        self._streams = Streams()
        self._profiles: deque[asyncio.Future[str]] = deque()  # asked for, oldest first
        self._adapter_calls: dict[int, asyncio.Future[None]] = {}  # by their numbers
        self._num_adapter_calls = 0
        self._forgotten: list[str] = []  # digests of adapters that were unloaded while the engine was not ready
        self._stall_limit_s = stall_limit_s
        self._watchdog = Watchdog(0.0, limit_s=stall_limit_s)

    @property
    def state(self) -> EngineState:
        return self._state

    def state_of(self, rank: int | None) -> EngineState:
        return self._state

    @property
    def reason(self) -> str:
        return self._reason

    @property
    def has_started(self) -> bool:
        """Whether `info` is known."""
        return self._info is not None

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise RuntimeError("the engine has not started yet")
        return self._info

    @property
    def stats(self) -> EngineStats:
        return self._stats

    @property
    def sleep_level(self) -> int:
        return 0

    @property
    def is_available(self) -> bool:
        """Whether it serves a request that arrives now."""
        return self._state is EngineState.READY

    async def sleep(self, level: int, *, waits: bool = False) -> None:
        """See EngineClient.sleep. This is for an engine that this process does not start and stop."""
        raise SleepError("this engine cannot sleep: it is no process of this one")

    async def wake_up(self) -> None:  # noqa: B027  # it is awake
        """See EngineClient.wake_up."""

    async def _prepare(self) -> None:  # noqa: B027  # only an engine that sleeps by itself needs it
        """Prepare the engine before a request is sent."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        await self._prepare()
        if self._state is not EngineState.READY:
            raise EngineDead(self._reason)
        stream = self._streams.open(request.request_id)
        try:
            self._send(Submit(stream.handle, request))
            while True:
                output = await stream.next()
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            self._streams.close(stream)
            if not stream.is_finished:
                self._send(Abort([stream.handle]))

    async def pool(self, requests: Sequence[EngineRequest], on_output: OnOutput = no_listener) -> list[EngineOutput]:
        """See EngineClient.pool."""
        await self._prepare()
        if self._state is not EngineState.READY:
            raise EngineDead(self._reason)
        # Twice as many requests as can run are sent, so that the engine need not wait for the next portion.
        max_sent = 2 * self.info.max_num_seqs
        return await PooledCall(requests, self._streams, self._send, max_sent, on_output).outputs()

    async def profile(self, *, is_start: bool) -> str:
        if self._state is not EngineState.READY:
            raise EngineDead(self._reason)
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._profiles.append(done)
        self._send(Profile(is_start))
        return await done

    async def load_adapter(self, ref: AdapterRef) -> None:
        """See EngineClient.load_adapter."""
        await self._prepare()
        await self._change_adapters(lambda number: LoadAdapter(number, ref))

    async def unload_adapter(self, digest: str) -> None:
        """See EngineClient.unload_adapter."""
        if self._state in (EngineState.SLEEPING, EngineState.STALLED):
            self._forgotten.append(digest)
        else:
            await self._change_adapters(lambda number: UnloadAdapter(number, digest))

    async def _change_adapters(self, message: Callable[[int], Message]) -> None:
        if self._state is not EngineState.READY:
            raise EngineDead(self._reason)
        number, done = self._new_call(), asyncio.get_running_loop().create_future()
        self._adapter_calls[number] = done
        try:
            self._send(message(number))
            await done
        finally:
            self._adapter_calls.pop(number, None)

    def _new_call(self) -> int:
        self._num_adapter_calls += 1
        return self._num_adapter_calls

    @abstractmethod
    async def start(self) -> EngineInfo:
        """See EngineClient.start."""

    @abstractmethod
    async def close(self) -> None:
        """See EngineClient.close."""

    @abstractmethod
    def _send(self, message: Message) -> None:
        """Raises InvalidRequest for a request that cannot be sent."""

    def _receive(self, message: Message) -> None:
        match message:
            case Outputs():
                self._watchdog.progress(asyncio.get_running_loop().time())
                self._streams.deliver_tokens(message.handles.tolist(), message.token_ids.tolist())
                for handle, output in zip(message.record_handles, message.records, strict=True):
                    self._streams.deliver(handle, output)
            case Stats():
                self._stats = message.stats
            case Profiled():
                done = self._profiles.popleft()
                if done.done():  # the caller has gone
                    return
                if message.error:
                    done.set_exception(ProfileError(message.error))
                else:
                    done.set_result(message.path)
            case AdapterChanged(number, error, code):
                changed = self._adapter_calls.pop(number, None)
                if changed is None or changed.done():  # the caller has gone
                    return
                if error:
                    changed.set_exception(AdapterError(error, code=code))
                else:
                    changed.set_result(None)
            case Refused():
                self._streams.refuse(message.handle, refusal(message))
            case _:
                logger.error("the engine sent %s, which only a client may send", type(message).__name__)

    def _set(self, state: EngineState, reason: str = "") -> None:
        self._state, self._reason = state, reason
        if state is EngineState.READY:
            forgotten, self._forgotten = self._forgotten, []
            for digest in forgotten:
                self._send(UnloadAdapter(self._new_call(), digest))  # the call has returned

    def _lose(self, state: EngineState, reason: str) -> None:
        """The engine has ended: open streams fail."""
        self._set(state, reason)  # first: consumers that wake up may read it
        self._stats = EngineStats()
        self._streams.fail_all(EngineDead, reason)
        self._fail_calls(reason)

    def _fail_calls(self, reason: str) -> None:
        """Calls that the engine has not answered fail."""
        for changed in self._adapter_calls.values():
            if not changed.done():
                changed.set_exception(EngineDead(reason))
        while self._profiles:
            done = self._profiles.popleft()
            if not done.done():
                done.set_exception(EngineDead(reason))

    def _poll_heartbeat(self, now: float) -> None:  # noqa: B027  # an engine process sends heartbeats
        """Give the watchdog a heartbeat, for an engine that sends none."""

    async def _watch_progress(self) -> None:
        """Change between READY and STALLED, until cancelled."""
        now = asyncio.get_running_loop().time
        last = now()
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            is_late = now() - last > 4 * WATCH_INTERVAL_S  # this event loop was blocked, with messages unread
            last = now()
            self._poll_heartbeat(last)
            if is_late or self._state not in (EngineState.READY, EngineState.STALLED):
                self._watchdog.progress(last)
            elif not len(self._streams) and (self._state is EngineState.READY or self._watchdog.is_idle(last)):
                # clients that have given up do not end a stall: liveness probes would never fail often enough
                self._watchdog.progress(last)
            if self._state is EngineState.READY and self._watchdog.is_stalled(last):
                self._set(EngineState.STALLED, f"the engine has made no progress for {self._stall_limit_s:g} seconds")
                logger.error(self._reason)
            elif self._state is EngineState.STALLED and not self._watchdog.is_stalled(last):
                self._set(EngineState.READY)
                logger.warning("the engine makes progress again")
