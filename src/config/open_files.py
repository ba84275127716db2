"""The limit of open files of this process. Each connection of a client is one."""

from __future__ import annotations

import contextlib
import resource
import sys

_DARWIN_LIMIT = 10_240  # OPEN_MAX: macOS shows no hard limit, and accepts no more than this


def max_open_files() -> int | None:
    """The number to which `raise_limit` raises the limit; None if it is not limited."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        return hard
    return max(soft, _DARWIN_LIMIT) if sys.platform == "darwin" else None


def raise_limit() -> None:
    """Raise the soft limit, often 1024, to the hard one. Child processes inherit it."""
    limit = max_open_files()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # not allowed: the limit stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.RLIM_INFINITY if limit is None else limit, hard))
