"""The memory of all ranks, which go to sleep and wake up together."""

from __future__ import annotations

from ..loop.executor import Sleeper
from ..loop.step_queue import RunnerUnusable
from ..transport.messages import FreeMemory, TakeMemory
from .followers import Followers, in_step


class MemoryOfRanks:
    """Sleeper of an engine. If one rank cannot do what it is asked for, all do the opposite."""

    def __init__(self, own: Sleeper, others: Followers) -> None:
        """own: of rank 0. What sleeps already, or is awake, does nothing."""
        self._own, self._others = own, others

    def free_memory(self) -> None:
        """Returns when all have done so. Raises MemoryError; RankLost; RunnerUnusable if only some have memory."""
        self._own.free_memory()
        if error := self._refusal(FreeMemory()):
            try:
                self._own.take_memory()
            except MemoryError as own:
                raise RunnerUnusable(f"{error}; and rank 0 does not get its memory again: {own}") from None
            if lost := self._refusal(TakeMemory()):
                raise RunnerUnusable(f"{error}; and another rank does not get its memory again: {lost}")
            raise MemoryError(error)

    def take_memory(self) -> None:
        """Returns when all have done so. Raises MemoryError; RankLost; RunnerUnusable if only some have memory."""
        self._own.take_memory()
        if error := self._refusal(TakeMemory()):
            try:
                self._own.free_memory()
            except MemoryError as own:
                raise RunnerUnusable(f"{error}; and rank 0 cannot sleep again: {own}") from None
            if awake := self._refusal(FreeMemory()):
                raise RunnerUnusable(f"{error}; and another rank cannot sleep again: {awake}")
            raise MemoryError(error)

    def _refusal(self, message: FreeMemory | TakeMemory) -> str:
        """What keeps other ranks from it; empty if all have done it."""
        with in_step(self._others, "sleep"):
            self._others.expect_returned()
            self._others.send(message)
            answers = self._others.take_returned()
        return next((f"rank {rank}: {each.error}" for rank, each in enumerate(answers, 1) if each.error), "")
