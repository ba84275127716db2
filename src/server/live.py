"""Requests under way: each ends when its work is done, when its client leaves, or when the server must end it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from .limits import ClientGone, Receive
from .protocol.errors import ApiError, unavailable


class _Live:
    def __init__(self) -> None:
        self.scope = asyncio.timeout(None)
        self.cause: ApiError | ClientGone | None = None

    def end(self, cause: ApiError | ClientGone) -> None:
        """Interrupt the work at its next wait; `LiveRequests.watch` then raises `cause`."""
        if self.cause is None and not self.scope.expired():
            self.cause = cause
            self.scope.reschedule(0)  # long past: at the loop's next turn


class LiveRequests:
    """All requests under way, so that they can be ended together."""

    def __init__(self) -> None:
        self._open: set[_Live] = set()
        self._none_left = asyncio.Event()
        self._none_left.set()

    def __len__(self) -> int:
        return len(self._open)

    @contextlib.asynccontextmanager
    async def watch(self, receive: Receive) -> AsyncIterator[None]:
        """Carry out the body until it is done or interrupted. The request's own body must have been read.

        Raises ClientGone when the client left, or the ApiError of `end_all`.
        """
        live = _Live()
        watcher = asyncio.ensure_future(_watch(receive, live))
        self._open.add(live)
        self._none_left.clear()
        try:
            async with live.scope:
                yield
        except TimeoutError:
            if live.cause is None:
                raise
            raise live.cause from None
        finally:
            self._open.discard(live)
            watcher.cancel()
            if not self._open:
                self._none_left.set()

    async def end_all(self, error: Callable[[], ApiError] | None = None) -> None:
        """End every request now with an error of its own, and wait until the last has ended."""
        for live in list(self._open):
            live.end(error() if error else shutting_down())
        await self._none_left.wait()


def shutting_down() -> ApiError:
    return unavailable("the server is shutting down", code="server_shutting_down", retry_after_s=1)


async def _watch(receive: Receive, live: _Live) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    live.end(ClientGone())
