"""OfflineBatch: connects EngineLoop with one `LLM.generate` call. Submits its requests, collects their outputs.

Requests that the engine's queue has no space for are submitted again after each step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from ..engine.api import EngineOutput, EngineRequest, QueueFull
from ..engine.loop.dispatch import refusal
from ..engine.loop.engine_core import EngineCore
from ..engine.transport.messages import Abort, Message, Outputs, Refused, Submit
from .outputs import Collector


class OfflineBatch:
    """The Port of one `generate` call. Its one client is called None."""

    def __init__(
        self,
        core: EngineCore,
        open_requests: Mapping[int, tuple[EngineRequest, Collector]],
        on_end: Callable[[], None],
    ) -> None:
        """on_end: called after the end of each sequence."""
        self._core = core
        self._open = dict(open_requests)
        self._waiting = deque(self._open)  # handles
        self._is_full = False  # the queue of the engine
        self._to_abort: list[int] = []
        self._on_end = on_end
        self._started = time.perf_counter()

    @property
    def is_stopped(self) -> bool:
        return not self._open and not self._core.has_work

    def receive(self, wait_s: float | None) -> Iterator[tuple[None, Message]]:
        if wait_s:
            time.sleep(wait_s)
        if self._to_abort:
            handles, self._to_abort = self._to_abort, []
            yield None, Abort(handles)
        self._is_full = False
        while self._waiting and not self._is_full:
            handle = self._waiting.popleft()
            yield None, Submit(handle, self._open[handle][0])

    def send(self, client: None, message: Message) -> bool:
        """Raises InvalidRequest for a refused request and RuntimeError for a failed one."""
        match message:
            case Refused():
                error = refusal(message)
                if not isinstance(error, QueueFull):
                    raise error
                self._waiting.appendleft(message.handle)
                self._is_full = True
            case Outputs():
                for handle, token_id in zip(message.handles.tolist(), message.token_ids.tolist(), strict=True):
                    self._take(handle, EngineOutput(request_id="", token_ids=[token_id]))
                for handle, output in zip(message.record_handles, message.records, strict=True):
                    self._take(handle, output)
        return True

    def broadcast(self, message: Message) -> None:
        """Statistics have no reader here."""

    def _take(self, handle: int, output: EngineOutput) -> None:
        if self._open[handle][1].take(output, lambda: time.perf_counter() - self._started):
            del self._open[handle]
            if output.finish_reason is None:  # a stop string ended it, which the engine does not see
                self._to_abort.append(handle)
            self._on_end()
