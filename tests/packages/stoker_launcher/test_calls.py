"""Calls of workers on two ranks: each is answered by results of its own, or is the last one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.config.schema.parallel import ParallelConfig
from stoker.engine.ranks.followers import RankLost
from stoker.engine.ranks.worker_calls import LeadingCalls
from stoker.engine.transport.rank_messages import Call, Returned
from stoker.engine.transport.rank_values import packed_values
from stoker.engine.worker import Worker, Workplace
from stoker_launcher.calls import LaunchedCalls
from stoker_launcher.following import LaunchedRank
from stoker_launcher.leading import LaunchedProcesses

LIMIT_S = 60.0
Ranks = tuple[LaunchedProcesses, LaunchedRank]
INTERRUPTED = "a call of `interrupted` ended in the middle: KeyboardInterrupt: "


class Methods(Worker):
    def place(self) -> int:
        return self.rank

    def interrupted(self) -> None:
        raise KeyboardInterrupt

    def leaves(self) -> int:
        if self.rank == 1:
            raise SystemExit(3)
        return 0


def workplace(rank: int) -> Workplace:
    return Workplace(Methods, ParallelConfig(tensor_parallel_size=2), rank, None)  # type: ignore[arg-type]


def test_a_result_of_an_earlier_call_is_not_of_the_next_one(connect: Callable[..., Ranks]):
    rank_0, other = connect()
    other.send(Returned(b"", "too late"))
    with rank_0._changed:
        assert rank_0._changed.wait_for(lambda: rank_0._followers[0].returned, LIMIT_S)
    calls = LeadingCalls(workplace(0), rank_0)
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(calls.call, "place", (), {})
        assert isinstance(other.receive(LIMIT_S), Call)
        other.send(packed_values(1, ""))
        assert called.result(LIMIT_S) == [0, 1]


def test_an_interrupted_call_is_the_last_one(connect: Callable[..., Ranks]):
    """Its results were returned as those of the next call."""
    rank_0, _ = connect()
    calls = LeadingCalls(workplace(0), rank_0)
    with pytest.raises(KeyboardInterrupt):
        calls.call("interrupted", (), {})
    with pytest.raises(RankLost, match=INTERRUPTED):
        calls.call("place", (), {})


def test_an_interrupted_call_of_a_script_ends_those_of_the_others(connect: Callable[..., Ranks]):
    """The next call failed with an AssertionError on the other ranks."""
    rank_0, other = connect()
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(LaunchedCalls(workplace(1), other).call, "interrupted", (), {})
        with pytest.raises((KeyboardInterrupt, RankLost)):  # whichever is first; the other one hears of it
            LaunchedCalls(workplace(0), rank_0).call("interrupted", (), {})
        with pytest.raises((KeyboardInterrupt, RankLost)):
            called.result(LIMIT_S)
    with pytest.raises(RankLost, match=" ended in the middle: KeyboardInterrupt: "):
        LaunchedCalls(workplace(0), rank_0).call("place", (), {})


def test_a_method_that_ends_the_script_of_a_rank_ends_the_call(connect: Callable[..., Ranks]):
    """Rank 0 waited for its result without end."""
    rank_0, other = connect()
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(LaunchedCalls(workplace(1), other).call, "leaves", (), {})
        with pytest.raises(RankLost, match=r"a call of `leaves` of rank 1 .* ended in the middle: SystemExit: 3"):
            LaunchedCalls(workplace(0), rank_0).call("leaves", (), {})
        with pytest.raises(RankLost, match="SystemExit: 3"):
            called.result(LIMIT_S)
