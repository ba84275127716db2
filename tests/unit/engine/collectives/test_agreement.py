"""The smallest number of all ranks, and a rank that ends before it has said its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.engine.collectives.agreement import smallest_of
from stoker.engine.collectives.connect import ADDRESS, open_store
from stoker.engine.collectives.gloo import Meeting

LIMIT_S = 120.0


def test_all_ranks_get_the_smallest_number_whatever_their_stage():
    store, port = open_store(ADDRESS)
    each = [smallest_of(Meeting(ADDRESS, port, ADDRESS, f"stage {rank}"), rank, 3, LIMIT_S) for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda agree, number: agree(number), each, [7, 2**40, 9])) == [7, 7, 7]
    del store


def test_a_rank_that_has_ended_is_not_waited_for():
    def check() -> None:
        raise RuntimeError("rank 1 has ended")

    store, port = open_store(ADDRESS)
    with pytest.raises(RuntimeError, match="rank 1 has ended"):
        smallest_of(Meeting(ADDRESS, port, ADDRESS), 0, 2, LIMIT_S, check)(5)
    del store
