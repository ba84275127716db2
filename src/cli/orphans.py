"""Processes that have ended after their parent, where this process is the first of a container and gets their ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from pathlib import Path

_INTERVAL_S = 5.0


async def with_orphans(serve: Coroutine[None, None, int]) -> int:
    """Serves, and removes orphans that have ended from the process table. Returns what `serve` returns."""
    reaping = asyncio.create_task(_reap()) if os.getpid() == 1 else None
    try:
        return await serve
    finally:
        if reaping is not None:
            reaping.cancel()


async def _reap() -> None:
    """A process waits for its children: an end that is still there after an interval is an orphan's."""
    before: set[int] = set()
    while True:
        await asyncio.sleep(_INTERVAL_S)
        before = reap(before)


def reap(before: set[int]) -> set[int]:
    """Removes the children that have ended and are among `before`. Returns the other ones that have ended."""
    ended = _ended_children()
    for pid in ended & before:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return ended - before


def _ended_children() -> set[int]:
    mine, found = str(os.getpid()), set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if state == "Z" and parent == mine:
                found.add(int(folder.name))
    return found
