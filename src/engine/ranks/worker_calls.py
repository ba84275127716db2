"""Calls of the workers of all processes, from rank 0, which has started the others or to which they have connected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..api import CallError
from ..transport.rank_messages import Call
from ..transport.rank_values import packed_value, unpacked_values
from ..worker import Workplace, values_of
from .followers import Followers, in_step


class LeadingCalls:
    def __init__(self, workplace: Workplace, others: Followers) -> None:
        self._workplace, self._others = workplace, others

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """What the method returns, by rank. Raises CallError, or RankLost.

        No step and no call can follow one that is interrupted: the other ranks would still be in it.
        """
        self._workplace.check(method)
        try:
            arguments = packed_value([list(args), dict(kwargs)])
        except TypeError as error:
            raise CallError(f"the arguments of `{method}` cannot be sent: {error}") from None
        with in_step(self._others, f"a call of `{method}`"):
            self._others.expect_returned()
            self._others.send(Call(method, arguments))
            own = self._workplace.returned(method, args, kwargs)
            others = self._others.take_returned()
        return values_of(
            method, [own, *((None if each.error else unpacked_values(each.value), each.error) for each in others)]
        )
