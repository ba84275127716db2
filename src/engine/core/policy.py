"""The order of requests under each scheduling policy, and the waiting queue in that order."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from typing import Literal

from .request import Request

PolicyName = Literal["fcfs", "priority"]
Rank = tuple[int, int]  # smaller is served first; no two requests have the same


def _by_arrival(request: Request) -> Rank:
    return 0, request.arrival


def _by_priority(request: Request) -> Rank:
    return request.priority, request.arrival


RANKS: dict[PolicyName, Callable[[Request], Rank]] = {"fcfs": _by_arrival, "priority": _by_priority}


class WaitingQueue:
    """Requests without a slot, best rank first. A preempted one keeps its arrival, and so its place in the order."""

    def __init__(self, rank: Callable[[Request], Rank]) -> None:
        self._rank = rank
        # worst first: taking the best from the end moves no entry. Ranks differ, so requests are not compared.
        self._entries: list[tuple[int, int, Request]] = []
        self.num_tokens = 0  # prompt tokens of all waiting requests

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        """The requests, in any order."""
        return (request for _, _, request in self._entries)

    def push(self, request: Request) -> None:
        insort(self._entries, self._entry(request))
        self.num_tokens += request.num_prompt_tokens

    def peek(self, index: int = 0) -> Request:
        """The first one, or the one at `index` in the order."""
        return self._entries[-1 - index][2]

    def pop(self, index: int = 0) -> Request:
        request = self._entries.pop(-1 - index)[2]
        self.num_tokens -= request.num_prompt_tokens
        return request

    def remove(self, request: Request) -> None:
        self._entries.remove(self._entry(request))
        self.num_tokens -= request.num_prompt_tokens

    def _entry(self, request: Request) -> tuple[int, int, Request]:
        first, second = self._rank(request)
        return -first, -second, request
