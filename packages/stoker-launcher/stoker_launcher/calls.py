"""Calls of workers where the script of each rank makes them: each has its own arguments, and the results of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.engine.transport.rank_messages import AllReturned, Operation, Returned
from stoker.engine.transport.rank_values import packed_values, unpacked_values
from stoker.engine.worker import Workplace, values_of

from .following import LaunchedRank
from .leading import LaunchedProcesses


class LaunchedCalls:
    def __init__(self, workplace: Workplace, others: LaunchedProcesses | LaunchedRank) -> None:
        self._workplace, self._others = workplace, others

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """What the method returns, by rank. Raises CallError, or RankLost if another rank calls another method.

        As with LeadingCalls, nothing can follow a call that is interrupted.
        """
        self._workplace.check(method)
        what = f"a call of `{method}`"
        with self._others.in_step(what):
            self._others.begin(Operation(what))
            by_rank = self._exchanged(packed_values(*self._workplace.returned(method, args, kwargs)))
        return values_of(
            method, [(None if each.error else unpacked_values(each.value), each.error) for each in by_rank]
        )

    def _exchanged(self, own: Returned) -> list[Returned]:
        if isinstance(self._others, LaunchedProcesses):
            by_rank = [own, *self._others.take_returned()]
            self._others.end(AllReturned(by_rank))
            return by_rank
        self._others.send(own)
        message = self._others.receive()
        assert isinstance(message, AllReturned), message
        return message.by_rank
