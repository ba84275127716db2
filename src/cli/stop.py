"""A stop before a server is ready: by SIGTERM, or by Ctrl-C in a terminal."""

from __future__ import annotations

import signal
from collections.abc import Callable

from .console import print_message


def unless_stopped(work: Callable[[], int]) -> int:
    """The exit code of `work`; 0 after a stop, because a stop that was requested is no failure.

    `work` imports what it needs, which takes a good part of a start. An event loop in it handles the signals itself.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: raises KeyboardInterrupt
    try:
        return work()
    except KeyboardInterrupt:
        print_message("stopped before it was ready")
        return 0
    finally:
        signal.signal(signal.SIGTERM, before)
