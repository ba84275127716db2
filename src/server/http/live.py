"""Running requests: each ends when it is answered, when its client leaves, or when the server shuts down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Hashable

from ..engine_errors import shutting_down
from ..protocol.errors import ApiError
from .deadline import Deadline
from .limits import ClientGone, Receive
from .turns import Turns


class _LiveRequest:
    def __init__(self, names: Collection[Hashable]) -> None:
        self.names = frozenset(names)
        self.scope = asyncio.timeout(None)
        self.cause: ApiError | ClientGone | None = None

    def end(self, cause: ApiError | ClientGone) -> None:
        """Interrupt the request at its next await; `LiveRequests.watch` then raises `cause`."""
        if self.cause is None and not self.scope.expired():
            self.cause = cause
            self.scope.reschedule(0)  # in the past: the loop's next iteration


class LiveRequests:
    """All running requests, so that they can be counted and ended together."""

    def __init__(self, turns: Turns, count: Callable[[int], None] = lambda num_open: None) -> None:
        """
        turns: taken to end a request whose client has left: many can leave in the same moment.
        count: called with the number of running requests when it changes.
        """
        self._count = count
        self._turns = turns
        self._open: set[_LiveRequest] = set()
        self._none_left = asyncio.Event()
        self._none_left.set()

    def __len__(self) -> int:
        return len(self._open)

    @contextlib.asynccontextmanager
    async def watch(
        self, receive: Receive, deadline: Deadline | None = None, names: Collection[Hashable] = ()
    ) -> AsyncIterator[None]:
        """Run the `async with` block until it ends or is interrupted. The request's body must have been read before.

        names: for `end_named`. Raises ClientGone when the client leaves, or the ApiError of the deadline, of `end_all`
        or of `end_named`.
        """
        live = _LiveRequest(names)
        timer: asyncio.TimerHandle | None = None
        if deadline is not None:
            timer = asyncio.get_running_loop().call_later(deadline.remaining_s, live.end, deadline.error())
        watcher = asyncio.ensure_future(self._watch(receive, live))
        self._open.add(live)
        self._count(len(self._open))
        self._none_left.clear()
        try:
            async with live.scope:
                yield
        except TimeoutError:
            if live.cause is None:
                raise
            raise live.cause from None
        finally:
            live.cause = None  # it refers to this frame: all that the request holds would stay in a cycle
            self._open.discard(live)
            self._count(len(self._open))
            watcher.cancel()
            if timer is not None:
                timer.cancel()
            if not self._open:
                self._none_left.set()

    async def end_all(self, error: Callable[[], ApiError] | None = None) -> None:
        """End every request now, each with its own error object, and wait until all have ended."""
        for live in list(self._open):
            live.end(error() if error else shutting_down())
        await self._none_left.wait()

    def end_named(self, name: Hashable, error: Callable[[], ApiError]) -> bool:
        """End the requests of this name. Returns whether there are any."""
        found = [live for live in self._open if name in live.names]
        for live in found:
            live.end(error())
        return bool(found)

    async def _watch(self, receive: Receive, live: _LiveRequest) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await self._turns.take()
        live.end(ClientGone())
