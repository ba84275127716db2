"""Exchange between ranks, which are threads here; tests/e2e has processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import pytest
import torch
from tests.slow_cases import slow

from stoker.engine.collectives.shared_memory import SharedMemoryRanks
from stoker.engine.host.shared_memory import SharedMemory
from stoker.engine.kernels import select_kernels
from stoker.engine.kernels.exchange import Choice, ExchangeClosed, merge_parts_reference, own_rows_reference

DTYPES = [torch.float32, torch.bfloat16]


@contextmanager
def ranks_of(dtype: torch.dtype, size: int) -> Iterator[list[SharedMemoryRanks]]:
    exchange = select_kernels("cpu", dtype, 64).exchange
    if exchange is None:
        pytest.skip("no C++ kernels")
    memory = SharedMemory.new(size)
    yield [SharedMemoryRanks(exchange, memory, rank, size) for rank in range(size)]
    os.close(memory.fd)


Result = TypeVar("Result")


def on_all(ranks: list[SharedMemoryRanks], call: Callable[[SharedMemoryRanks], Result]) -> list[Result]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(call, ranks))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("shape", [(1, 5), (3, 64), (300, 1024)], ids=["few", "some", "several pieces"])
def test_a_sum_is_the_same_on_all_ranks_and_rounded_once(dtype: torch.dtype, size: int, shape: tuple[int, int]) -> None:
    addends = [torch.randn(shape).to(dtype) for _ in range(size)]
    expected = sum((each.float() for each in addends[1:]), addends[0].float()).to(dtype)
    with ranks_of(dtype, size) as ranks:
        for _ in range(3):  # places are used again
            for found in on_all(ranks, lambda each: each.sum(addends[each.rank].clone())):
                assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "own", "width"), [(1, 7, 13), (5, 33, 97), (9, 50_000, 149_999)])
def test_columns_come_together_on_the_first_rank(dtype: torch.dtype, rows: int, own: int, width: int) -> None:
    parts = [torch.randn(rows, own).to(dtype) for _ in range(3)]
    with ranks_of(dtype, 3) as ranks:
        for _ in range(2):
            first, *others = on_all(ranks, lambda each: each.gather(parts[each.rank], width))
            assert torch.equal(first, torch.cat(parts, 1)[:, :width])
            assert all(torch.equal(other, part) for other, part in zip(others, parts[1:], strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("count", "width"), [(1, 8), (11, 24), (700, 1024)])
def test_rows_of_a_divided_table(dtype: torch.dtype, count: int, width: int) -> None:
    table, each = torch.randn(10, width).to(dtype), 4  # the last rank has two rows, and two of padding
    ids = torch.randint(10, (count,))
    padded = torch.cat((table, table.new_zeros(2, width)))

    def rows(ranks: SharedMemoryRanks) -> torch.Tensor:
        part = padded[ranks.rank * each : (ranks.rank + 1) * each]
        own = ranks.own_rows(ids, each)
        assert torch.equal(own, own_rows_reference(ids, ranks.rank * each, each))
        return ranks.rows_of_owners(part[own], ids, each)

    with ranks_of(dtype, 3) as ranks:
        for found in on_all(ranks, rows):
            assert torch.equal(found, table[ids])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "own"), [(0, 5), (3, 33), slow(5, 70_000)])
def test_columns_come_together_in_each_group(dtype: torch.dtype, rows: int, own: int) -> None:
    parts = [torch.randn(rows, own).to(dtype) for _ in range(4)]
    addends = [torch.randn(7).to(dtype) for _ in range(4)]
    total = sum((each.float() for each in addends[1:]), addends[0].float()).to(dtype)

    def of_group(ranks: SharedMemoryRanks) -> torch.Tensor:
        first = ranks.rank // 2 * 2
        found = ranks.gather_in_group(parts[ranks.rank], range(first, first + 2))
        assert torch.equal(ranks.sum(addends[ranks.rank].clone()), total)  # of all, between those of groups
        return found

    with ranks_of(dtype, 4) as ranks:
        for _ in range(3):
            for rank, found in enumerate(on_all(ranks, of_group)):
                first = rank // 2 * 2
                assert torch.equal(found, torch.cat(parts[first : first + 2], 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "heads", "width"), [(1, 1, 16), (3, 5, 33), slow(40, 8, 512)])
def test_parts_of_attention_are_merged_by_their_totals(dtype: torch.dtype, rows: int, heads: int, width: int) -> None:
    """Two groups of two ranks, several pieces; a part without tokens, and a head without any."""
    parts = torch.randn(4, rows, 2 * heads, width).to(dtype)
    log_totals = torch.randn(4, rows, 2 * heads) * 20
    log_totals[1, 0, 0] = log_totals[2:, 0, -1] = -torch.inf
    parts[1, 0, 0] = parts[2:, 0, -1] = 0

    def merged(ranks: SharedMemoryRanks) -> torch.Tensor:
        first = ranks.rank // 2 * 2
        return ranks.merge_parts(parts[ranks.rank], log_totals[ranks.rank], range(first, first + 2))

    with ranks_of(dtype, 4) as ranks:
        for rank, found in enumerate(on_all(ranks, merged)):
            first, own = rank // 2 * 2, slice(rank % 2 * heads, (rank % 2 + 1) * heads)
            among = slice(first, first + 2)
            exact = merge_parts_reference(parts[among, :, own].double(), log_totals[among, :, own].double())
            tolerance = 1e-5 if dtype == torch.float32 else 2**-7
            torch.testing.assert_close(found.double(), exact.double(), rtol=tolerance, atol=tolerance)


def test_a_part_that_is_no_number_is_not_left_out() -> None:
    parts, log_totals = torch.ones(2, 1, 2, 16), torch.zeros(2, 1, 2)
    parts[0, 0, 0], log_totals[0, 0, 0] = torch.nan, torch.nan
    with ranks_of(torch.float32, 2) as ranks:
        first, second = on_all(ranks, lambda each: each.merge_parts(parts[each.rank], log_totals[each.rank], range(2)))
    assert first.isnan().all()
    assert (second == 1).all()
    assert merge_parts_reference(parts, log_totals)[0, 0].isnan().all()


def test_ranks_do_not_wait_for_one_that_has_ended() -> None:
    with ranks_of(torch.float32, 3) as ranks, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(ranks[0].sum, torch.zeros(4))
        ranks[1]._memory.close_exchange()
        with pytest.raises(ExchangeClosed):
            waits.result()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("counts", "width"), [((1, 0, 3), 24), ((0, 5, 2), 24), slow((700, 3, 301), 1024)])
def test_tokens_of_replicas_come_together_and_sums_return(
    dtype: torch.dtype, counts: tuple[int, ...], width: int
) -> None:
    """Rank 2 leaves out a token that it has announced, as a layer does of which few results are needed."""
    size, total, capacity = len(counts), sum(counts), sum(counts) + 4
    rows = [*counts[:2], counts[2] - 1]
    own = [
        (torch.randn(count, width).to(dtype), torch.randint(9, (count, 2), dtype=torch.int32), torch.rand(count, 2))
        for count in rows
    ]
    bases = [torch.randn(count, width).to(dtype) for count in rows]
    gates = [torch.randn(count, 1).to(dtype) for count in rows]
    parts = [torch.randn(capacity, width).to(dtype) for _ in counts]
    firsts = [sum(counts[:rank]) for rank in range(size)]

    def step(each: SharedMemoryRanks) -> tuple[Choice, torch.Tensor]:
        exchange, memory, rank = each._exchange, each._memory, each.rank
        agreed = torch.zeros(size, dtype=torch.int64)
        exchange.announce_tokens(memory, rank, size, counts[rank])
        exchange.await_tokens(memory, rank, size, agreed)
        assert agreed.tolist() == list(counts)
        gathered = exchange.gather_tokens(memory, rank, agreed, own[rank], capacity)
        sums = exchange.sum_of_tokens(memory, rank, agreed, parts[rank], rows[rank], bases[rank], gates[rank])
        assert not any(memory.has_more(rank, other) for other in range(size))
        return gathered, sums

    with ranks_of(dtype, size) as ranks:
        for _ in range(2):
            for rank, ((x, ids, weights), sums) in enumerate(on_all(ranks, step)):
                for other, (its, its_ids, its_weights) in enumerate(own):
                    at = slice(firsts[other], firsts[other] + rows[other])
                    assert torch.equal(x[at], its)
                    assert torch.equal(ids[at], its_ids)
                    assert torch.equal(weights[at], its_weights)
                assert (ids[total - 1 :] == -1).all()
                at = slice(firsts[rank], firsts[rank] + rows[rank])
                exact = sum(part[at].double() for part in parts) + bases[rank].double() * gates[rank].double().sigmoid()
                tolerance = 1e-5 if dtype == torch.float32 else 2**-7
                torch.testing.assert_close(sums.double(), exact, rtol=tolerance, atol=tolerance)


def test_a_replica_that_has_begun_a_step_waits_for_the_others() -> None:
    with ranks_of(torch.float32, 2) as ranks:
        exchange, memory = ranks[0]._exchange, ranks[0]._memory
        assert not memory.has_more(1, 0)
        exchange.announce_tokens(memory, 0, 2, 7)
        assert memory.has_more(1, 0)
        assert not memory.has_more(0, 1)
        memory.close_exchange()
        assert memory.is_closed
        with pytest.raises(ExchangeClosed):
            exchange.await_tokens(memory, 0, 2, torch.zeros(2, dtype=torch.int64))
