"""Processes that have ended after their parent, where this process is the first of a container and gets their ends."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Container


def reap_orphans(known: Container[int]) -> None:
    """Removes those that have ended from the process table. known: children whose exit codes are waited for elsewhere;
    one of them that has ended may leave the others to the next call."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(ChildProcessError):  # it has no children
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in known:
            os.waitpid(ended.si_pid, 0)
