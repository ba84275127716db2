"""Shutdown: requests to stop a server, by signals or by the server itself."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator

from ...stop_signals import stop_signals


class Shutdown:
    """The first request starts the drain, the second ends it.

    Attributes:
        cause: of the first request: the name of a signal, or what else requested it.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.cut = asyncio.Event()
        self.cause = ""

    def request(self, cause: str = "") -> None:
        if self.requested.is_set():
            self.cut.set()
        else:
            self.cause = cause
        self.requested.set()

    def hang_up(self) -> None:
        """Starts the drain, and never ends it: both the shell and the kernel send SIGHUP when a terminal closes."""
        if not self.requested.is_set():
            self.request(signal.SIGHUP.name)


@contextlib.contextmanager
def on_signals(shutdown: Shutdown) -> Iterator[None]:
    """Let the signals request the shutdown during the block; afterwards they do what they did before."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in stop_signals()}
    for number in before:
        if number == signal.SIGHUP:
            loop.add_signal_handler(number, shutdown.hang_up)
        else:
            loop.add_signal_handler(number, shutdown.request, number.name)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
