"""Calls that share a thread by turns: where one waits for other processes, the next one goes on.

Each call is a greenlet, not a thread: the kernels' threads belong to the thread that calls them, and the order in which
the calls go on is the same in every process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from greenlet import getcurrent, greenlet

Result = TypeVar("Result")


class _Call(greenlet):
    """Others may run greenlets of their own in this thread: those give no turns."""


def call_in_turns(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """What the calls return. Each goes on until it gives its turn, then the next one does.

    Raises what the first of them raises that fails; the others end where they wait.
    """
    begun = [_Call(call) for call in calls]
    results: dict[greenlet, Result] = {}
    waiting = deque(begun)
    try:
        while waiting:
            call = waiting.popleft()
            result = call.switch()
            if call.dead:
                results[call] = result
            else:
                waiting.append(call)
    finally:
        for call in begun:
            if not call.dead:
                call.throw()
    return [results[call] for call in begun]


def give_turn() -> None:
    """Let other calls of the thread run until the next turn of this one, which has nothing to compute. Does nothing
    outside of such a call."""
    current = getcurrent()
    if isinstance(current, _Call) and current.parent is not None:
        current.parent.switch()
