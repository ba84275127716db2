"""Turns: calls that share a thread. Where one waits for other processes, the next one goes on.

Each call is a greenlet, not a thread: the kernels' threads belong to the thread that calls them, and the order in which
the calls go on is the same in every process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from greenlet import getcurrent, greenlet

Result = TypeVar("Result")


class Turns:
    def __init__(self) -> None:
        self._waiting: deque[greenlet] = deque()  # calls that have begun, without the one whose turn it is

    def compute(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """What the calls return. Each goes on until it gives its turn, then the next one does.

        Raises what the first of them raises that fails; the others end where they wait.
        """
        results: dict[greenlet, Result] = {}
        parts = [greenlet(call) for call in calls]
        self._waiting.extend(parts)
        try:
            while self._waiting:
                part = self._waiting.popleft()
                result = part.switch()
                if part.dead:
                    results[part] = result
                else:
                    self._waiting.append(part)
        finally:
            self._waiting.clear()
            for part in parts:
                if not part.dead:
                    part.throw()
        return [results[part] for part in parts]

    def give(self) -> None:
        """Called by one of the calls while it has nothing to compute: returns when its next turn comes."""
        parent = getcurrent().parent
        if parent is not None:
            parent.switch()
