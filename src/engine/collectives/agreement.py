"""Numbers that all ranks of a model agree on when they start."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .gloo import Meeting, store_of

Agree = Callable[[int], int]  # the number of this rank -> the smallest one of all ranks
_POLL_S = 0.02


def smallest_of(
    meeting: Meeting, rank: int, num_ranks: int, timeout_s: float, check: Callable[[], None] = lambda: None
) -> Agree:
    """rank: of all stages. check: called while this waits; raises if another rank has ended. To be called once."""

    def smallest(number: int) -> int:
        store: Any = store_of(meeting, timeout_s)  # not in the group of a stage: names are those of all
        store.set(_name(rank), str(number))
        names = [_name(each) for each in range(num_ranks)]
        while not store.check(names):
            check()
            time.sleep(_POLL_S)
        return min(int(store.get(name)) for name in names)

    return smallest


def _name(rank: int) -> str:
    return f"number of rank {rank}"
