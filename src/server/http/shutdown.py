"""Shutdown: requests to stop a server, by signals or by the server itself."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """The first request starts the drain, the second ends it."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.cut = asyncio.Event()

    def request(self) -> None:
        if self.requested.is_set():
            self.cut.set()
        self.requested.set()


@contextlib.contextmanager
def on_signals(shutdown: Shutdown) -> Iterator[None]:
    """During the block SIGTERM and SIGINT request the shutdown; afterwards they do what they did before."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in before:
        loop.add_signal_handler(number, shutdown.request)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
