"""Ranks that exchange through Gloo, and one that no longer answers."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest
import torch

from stoker.engine.collectives.connect import ADDRESS, open_store
from stoker.engine.collectives.gloo import GlooRanks, Meeting, RanksLost
from stoker.engine.collectives.turns import call_in_turns

LIMIT_S = 120.0


def test_ranks_add_and_a_rank_that_does_not_answer_is_not_waited_for_after_close():
    store, port = open_store(ADDRESS)
    ranks = [GlooRanks(Meeting(ADDRESS, port, ADDRESS, "a"), rank, 2, LIMIT_S) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(GlooRanks.join, ranks))
        for total in pool.map(lambda each: each.sum(torch.tensor([1.0, each.rank])), ranks):
            assert total.tolist() == [2.0, 1.0]
        for owner in range(2):
            tokens = [torch.tensor([-1, 2**24 + 1 + rank], dtype=torch.int32) for rank in range(2)]
            list(pool.map(GlooRanks.from_rank, ranks, tokens, [owner] * 2))
            assert [each.tolist() for each in tokens] == [[-1, 2**24 + 1 + owner]] * 2
        waiting: Future[torch.Tensor] = pool.submit(ranks[0].sum, torch.ones(1))
        ranks[0].close()
        with pytest.raises(RanksLost):
            waiting.result(LIMIT_S)
    del store


def test_a_rank_that_does_not_answer_ends_the_parts_of_a_step():
    """The first part waits again when its turn comes, and the second in the middle of its exchange."""
    store, port = open_store(ADDRESS)
    ranks = [GlooRanks(Meeting(ADDRESS, port, ADDRESS, "c"), rank, 2, LIMIT_S) for rank in range(2)]
    begun, ended = threading.Event(), []

    def part(number: int) -> torch.Tensor:
        try:
            if number:
                begun.set()
            return ranks[0].sum(torch.ones(1))
        finally:
            ended.append(number)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(GlooRanks.join, ranks))
        waiting = pool.submit(call_in_turns, [partial(part, 0), partial(part, 1)])
        assert begun.wait(LIMIT_S)
        ranks[0].close()
        with pytest.raises(RanksLost):
            waiting.result(LIMIT_S)
    assert ended == [0, 1]
    del store


def test_a_rank_that_does_not_come_is_not_waited_for_after_close():
    store, port = open_store(ADDRESS)
    alone = GlooRanks(Meeting(ADDRESS, port, ADDRESS, "b"), 0, 2, timeout_s=5)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(alone.join)
        alone.close()
        with pytest.raises(RanksLost):
            joining.result(LIMIT_S)
    del store


def test_an_exchange_has_a_limit_of_its_own():
    store, port = open_store(ADDRESS)
    ranks = [GlooRanks(Meeting(ADDRESS, port, ADDRESS, "f"), rank, 2, LIMIT_S, 0.5) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(GlooRanks.join, ranks))
        with pytest.raises(RuntimeError, match="500ms"):
            ranks[0].sum(torch.ones(1))
    del store


def test_an_operation_that_ends_while_its_wait_times_out_has_not_failed():
    """As torch's work: a wait with a limit has timed out, and the operation has ended before it is looked at."""

    class Work:
        def wait(self, limit: timedelta | None = None) -> None:
            if limit is not None:
                raise RuntimeError("Operation timed out!")

        def is_completed(self) -> bool:
            return True

    GlooRanks(Meeting(ADDRESS, 1, ADDRESS), 0, 2, LIMIT_S)._wait(Work())


def test_groups_of_one_store_are_apart():
    store, port = open_store(ADDRESS)
    ranks = [GlooRanks(Meeting(ADDRESS, port, ADDRESS, group), rank, 2, LIMIT_S) for group in "cd" for rank in range(2)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(GlooRanks.join, ranks))
        addends = [torch.tensor([float(index)]) for index in range(4)]
        totals = [each.item() for each in pool.map(GlooRanks.sum, ranks, addends)]
    assert totals == [1, 1, 5, 5]
    del store


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ranks_exchange_within_a_group_without_the_others(dtype: torch.dtype):
    """All ranks of a stage got the tensors of all, and waited for all."""
    store, port = open_store(ADDRESS)
    ranks = [GlooRanks(Meeting(ADDRESS, port, ADDRESS, "e"), rank, 4, LIMIT_S) for rank in range(4)]
    group = range(2, 4)
    columns = torch.arange(12, dtype=dtype).view(2, 3, 2)  # of ranks 2 and 3
    parts = torch.stack([torch.full((1, 4, 3), value, dtype=dtype) for value in (1, 3)])  # the weights are equal
    parts[:, :, 2:] *= 10  # heads of rank 3
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(GlooRanks.join, ranks))
        within = ranks[2:]
        gathered = list(pool.map(lambda each, x: each.gather_in_group(x, group), within, columns))
        merged = list(pool.map(lambda each, x: each.merge_parts(x, torch.zeros(1, 4), group), within, parts))
    assert all(each.tolist() == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]] for each in gathered)
    assert [each.tolist() for each in merged] == [[[[2.0] * 3] * 2], [[[20.0] * 3] * 2]]
    assert {each.dtype for each in (*gathered, *merged)} == {dtype}
    del store
