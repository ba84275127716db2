"""Ranks that sleep and wake up together, over real connections; each other rank is a thread."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from stoker.engine.loop.step_queue import RunnerUnusable
from stoker.engine.rank_process import change_memory
from stoker.engine.ranks.followers import Follower, Followers, RankLost
from stoker.engine.ranks.memory_of_ranks import MemoryOfRanks
from stoker.engine.transport.messages import FreeMemory, TakeMemory
from stoker.engine.transport.rank_link import RankLink


class Memory:
    """Of one rank."""

    def __init__(self, *refused: int) -> None:
        """refused: calls that fail, by their number from 0."""
        self._refused, self._num_calls = refused, 0
        self.is_free = False

    def _call(self, *, is_free: bool) -> None:
        self._num_calls += 1
        if self._num_calls - 1 in self._refused:
            raise MemoryError("none is left")
        self.is_free = is_free

    def free_memory(self) -> None:
        self._call(is_free=True)

    def take_memory(self) -> None:
        self._call(is_free=False)


class Ranks(Followers):
    def __init__(self, memories: list[Memory]) -> None:
        super().__init__(len(memories) + 1)
        self.ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        for rank, memory in enumerate(memories, 1):
            ours, theirs = socket.socketpair()
            self._followers.append(Follower(f"rank {rank}", RankLink(ours), None))
            self.ends.append(theirs)
            self._threads.append(threading.Thread(target=_follow, args=(memory, RankLink(theirs))))
            self._threads[-1].start()
        self._start_watching()

    def close(self) -> None:
        super().close()
        for thread in self._threads:
            thread.join()


def _follow(memory: Memory, link: RankLink) -> None:
    with contextlib.suppress(EOFError, OSError), contextlib.closing(link):
        while True:
            message = link.receive()
            assert isinstance(message, FreeMemory | TakeMemory)
            link.send(change_memory(memory, message))


Together = Callable[..., tuple[MemoryOfRanks, list[Memory], Ranks]]


@pytest.fixture
def together() -> Iterator[Together]:
    made: list[Ranks] = []

    def make(*memories: Memory) -> tuple[MemoryOfRanks, list[Memory], Ranks]:
        made.append(Ranks(list(memories[1:])))
        return MemoryOfRanks(memories[0], made[-1]), list(memories), made[-1]

    yield make
    for ranks in made:
        ranks.close()


def free(memories: list[Memory]) -> list[bool]:
    return [each.is_free for each in memories]


def test_all_have_freed_or_taken_memory_when_the_call_returns(together: Together) -> None:
    memory, of_ranks, _ = together(Memory(), Memory(), Memory())
    for _ in range(2):
        memory.free_memory()
        assert free(of_ranks) == [True] * 3
        memory.take_memory()
        assert free(of_ranks) == [False] * 3


@pytest.mark.parametrize("refusing", [0, 1, 2])
def test_if_one_cannot_sleep_all_are_awake(refusing: int, together: Together) -> None:
    memory, of_ranks, _ = together(*(Memory(*([0] if rank == refusing else [])) for rank in range(3)))
    with pytest.raises(MemoryError, match=f"rank {refusing}: none is left" if refusing else "none is left"):
        memory.free_memory()
    assert free(of_ranks) == [False] * 3
    memory.free_memory()  # the next time there is enough
    assert free(of_ranks) == [True] * 3


@pytest.mark.parametrize("refusing", [0, 1, 2])
def test_if_one_cannot_wake_up_all_sleep(refusing: int, together: Together) -> None:
    memory, of_ranks, _ = together(*(Memory(*([1] if rank == refusing else [])) for rank in range(3)))
    memory.free_memory()
    with pytest.raises(MemoryError, match="none is left"):
        memory.take_memory()
    assert free(of_ranks) == [True] * 3
    memory.take_memory()
    assert free(of_ranks) == [False] * 3


@pytest.mark.parametrize("memories", [(Memory(1), Memory(0)), (Memory(), Memory(0), Memory(1))])
def test_an_engine_of_which_some_sleep_is_unusable(memories: tuple[Memory, ...], together: Together) -> None:
    memory, _, _ = together(*memories)
    with pytest.raises(RunnerUnusable, match="does not get its memory again"):
        memory.free_memory()


def test_a_rank_that_is_lost_meanwhile(together: Together) -> None:
    memory, _, ranks = together(Memory(), Memory())
    ranks.ends[0].shutdown(socket.SHUT_RDWR)
    with pytest.raises(RankLost, match="rank 1"):
        memory.free_memory()
