"""A stop before a server is ready: by SIGTERM, by Ctrl-C in a terminal, or because the terminal was closed."""

from __future__ import annotations

import signal
from collections.abc import Callable

from ..stop_signals import stop_signals
from .console import print_message


def unless_stopped(work: Callable[[], int]) -> int:
    """The exit code of `work`; 0 after a stop, because a stop that was requested is no failure.

    `work` imports what it needs, which takes a good part of a start. An event loop in it handles the signals itself.
    """
    before = {number: signal.getsignal(number) for number in stop_signals()}
    try:  # each signal raises KeyboardInterrupt, as Ctrl-C does by default; one may come before the last is set
        for number in before:
            signal.signal(number, signal.default_int_handler)
        return work()
    except KeyboardInterrupt:
        for number in before:
            signal.signal(number, signal.SIG_IGN)  # a second one must not interrupt the message
        print_message("stopped before it was ready")
        return 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
