"""Open streams of a client: outputs are delivered by handle; one asyncio consumer per stream takes them.

Outputs for a consumer that is slower than the engine are not queued: they are merged into one EngineOutput.
Call all methods on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol, TypeVar

from ..api import EngineOutput, FinishReason

WOKEN_PER_TURN = 16  # consumers, in one iteration of the event loop: each may write to its client, 0.2 ms


class Receiver(Protocol):
    """What gets the outputs of one request."""

    handle: int
    is_finished: bool  # its last output or its error has arrived

    def put(self, output: EngineOutput) -> None: ...

    def fail(self, error: Exception) -> None: ...


AnyStream = TypeVar("AnyStream", bound=Receiver)


class Stream:
    """Outputs of one request that have arrived and were not taken yet."""

    def __init__(self, handle: int, request_id: str) -> None:
        self.handle = handle
        self.request_id = request_id
        self.is_finished = False
        self.is_to_wake = False  # it has tokens, and its consumer is in line to be woken
        self._pending: EngineOutput | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: EngineOutput) -> None:
        output.request_id = self.request_id
        if self._pending is None:
            self._pending = output
        else:
            self._pending.merge(output)
        self.is_finished = output.finish_reason is not None
        self.wake()

    def put_token(self, token_id: int) -> None:
        """Put a token and nothing else. The consumer waits on until `wake`."""
        if self._pending is None:
            self._pending = EngineOutput(request_id=self.request_id, token_ids=[token_id])
        else:
            self._pending.token_ids.append(token_id)

    def fail(self, error: Exception) -> None:
        """Pending outputs are still delivered, then `error` is raised."""
        self._error = error
        self.is_finished = True
        self.wake()

    def wake(self) -> None:
        """Let the consumer look for outputs."""
        self.is_to_wake = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> EngineOutput:
        """The outputs since the last call, merged. Raises the error that ended the stream, once."""
        while True:
            if self._pending is not None:
                output, self._pending = self._pending, None
                return output
            if self._error is not None:
                try:
                    raise self._error
                finally:
                    self._error = None  # it refers to this frame: all that its request holds would stay in a cycle
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


class Streams:
    """The open streams of one client, by handles that the engine returns with each output."""

    def __init__(self) -> None:
        self._open: dict[int, Receiver] = {}
        self._last_handle = 0
        self._to_wake: deque[Stream] = deque()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def handles(self) -> list[int]:
        return list(self._open)

    def open(self, request_id: str) -> Stream:
        return self.add(Stream(0, request_id))

    def add(self, stream: AnyStream) -> AnyStream:
        """Open a stream, which gets its handle."""
        self._last_handle = self._last_handle % (2**31 - 1) + 1  # handles travel as int32
        stream.handle = self._last_handle
        self._open[stream.handle] = stream
        return stream

    def close(self, stream: Receiver) -> None:
        self._open.pop(stream.handle, None)

    def deliver(self, handle: int, output: EngineOutput) -> None:
        """Outputs for a handle that is not open are dropped: its consumer has closed it."""
        stream = self._open.get(handle)
        if stream is not None and not stream.is_finished:
            stream.put(output)

    def deliver_tokens(self, handles: list[int], token_ids: list[int]) -> None:
        """One plain token for each handle. Consumers are woken in groups, between which other tasks run."""
        find, is_waking = self._open.get, bool(self._to_wake)
        for handle, token_id in zip(handles, token_ids, strict=True):
            stream = find(handle)
            if isinstance(stream, Stream) and not stream.is_finished:
                stream.put_token(token_id)
                if not stream.is_to_wake:
                    stream.is_to_wake = True
                    self._to_wake.append(stream)
        if not is_waking:
            self._wake_some()

    def _wake_some(self) -> None:
        for _ in range(min(WOKEN_PER_TURN, len(self._to_wake))):
            self._to_wake.popleft().wake()
        if self._to_wake:
            asyncio.get_running_loop().call_soon(self._wake_some)

    def refuse(self, handle: int, error: Exception) -> None:
        stream = self._open.get(handle)
        if stream is not None and not stream.is_finished:
            stream.fail(error)

    def fail_all(self, error_of: type[Exception], reason: str) -> None:
        """End every open stream with a separate exception (a shared one would collect tracebacks)."""
        for stream in list(self._open.values()):
            if not stream.is_finished:
                stream.fail(error_of(reason))

    def abort_all(self) -> None:
        """End every open stream with FinishReason.ABORT."""
        for stream in list(self._open.values()):
            if not stream.is_finished:
                stream.put(EngineOutput(request_id="", token_ids=[], finish_reason=FinishReason.ABORT))
