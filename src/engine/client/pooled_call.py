"""PooledCall: the requests of one call that are pooled, sent in portions, and their outputs.

A portion and the outputs of a step are one message each, whatever the number of requests. Not all requests are sent at
once: other clients find room in the engine's queue, whose limit does not limit the number of requests of a call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from ..api import EngineOutput, EngineRequest, FinishReason, QueueFull
from ..transport.messages import Abort, Message, SubmitMany
from .streams import Streams

OnOutput = Callable[[int, EngineOutput], None]  # the index of a request among those of its call, and its output


def no_listener(index: int, output: EngineOutput) -> None:
    """Ignore that a request was computed."""


class PooledCall:
    def __init__(
        self,
        requests: Sequence[EngineRequest],
        streams: Streams,
        send: Callable[[Message], None],
        max_sent: int,
        on_output: OnOutput = no_listener,
    ) -> None:
        """
        max_sent: maximum number of requests that are with the engine at a time, at least 1.
        on_output: as in EngineClient.pool.
        """
        self._requests, self._streams, self._send, self._on_output = requests, streams, send, on_output
        self._max_sent = self._most_sent = max_sent
        self._outputs: dict[int, EngineOutput] = {}
        self._to_send = deque(range(len(requests)))
        self._open: dict[int, _PooledStream] = {}  # by handle
        self._is_ended = False  # no more are sent
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def outputs(self) -> list[EngineOutput]:
        """The output of each request. Raises InvalidRequest or QueueFull if one is refused, and EngineDead.

        A request that is refused because the queue is full is sent again, as long as others of the call are computed.
        Once a request has failed or was aborted, no more are sent: those that were not sent end with ABORT.
        """
        try:
            self._send_more()
            while self._open:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
                if self._error is not None:
                    raise self._error
                self._send_more()
        finally:
            unfinished = list(self._open)
            for stream in self._open.values():
                self._streams.close(stream)
            self._open.clear()
            if unfinished:
                self._send(Abort(unfinished))
        return [self._outputs.get(place) or _not_sent(request) for place, request in enumerate(self._requests)]

    def _send_more(self) -> None:
        places = [self._to_send.popleft() for _ in range(min(len(self._to_send), self._max_sent - len(self._open)))]
        if not places:
            return
        handles = []
        for place in places:
            stream = self._streams.add(_PooledStream(self, place, self._requests[place].request_id))
            self._open[stream.handle] = stream
            handles.append(stream.handle)
        self._send(SubmitMany(handles, [self._requests[place] for place in places]))

    def take(self, stream: _PooledStream, output: EngineOutput) -> None:
        """The only output of a request."""
        self._close(stream)
        self._outputs[stream.place] = output
        self._on_output(stream.place, output)
        self._max_sent = min(self._max_sent + 1, self._most_sent)  # the queue may have been full only for a moment
        if output.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            self._is_ended = True
            self._to_send.clear()  # after an abort the engine may never answer, and after an error the call has failed

    def refuse(self, stream: _PooledStream, error: Exception) -> None:
        self._close(stream)
        if isinstance(error, QueueFull) and self._open:
            self._max_sent = len(self._open)
            if not self._is_ended:
                self._to_send.append(stream.place)
        elif self._error is None:
            self._error = error

    def _close(self, stream: _PooledStream) -> None:
        del self._open[stream.handle]
        self._streams.close(stream)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _not_sent(request: EngineRequest) -> EngineOutput:
    return EngineOutput(request_id=request.request_id, token_ids=[], finish_reason=FinishReason.ABORT)


class _PooledStream:
    """One request of a call, among the open streams of a client."""

    def __init__(self, call: PooledCall, place: int, request_id: str) -> None:
        self.handle, self.place = 0, place
        self._call, self._request_id = call, request_id
        self.is_finished = False

    def put(self, output: EngineOutput) -> None:
        output.request_id, self.is_finished = self._request_id, True
        self._call.take(self, output)

    def fail(self, error: Exception) -> None:
        self.is_finished = True
        self._call.refuse(self, error)
