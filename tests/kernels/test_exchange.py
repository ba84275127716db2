"""Exchange between ranks, which are threads here; tests/e2e has processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from stoker.engine.kernels import select_kernels
from stoker.engine.kernels.exchange import ExchangeClosed, SharedMemory, own_rows_reference
from stoker.engine.parallel.shared_memory import SharedMemoryRanks

DTYPES = [torch.float32, torch.bfloat16]


@contextmanager
def ranks_of(dtype: torch.dtype, size: int) -> Iterator[list[SharedMemoryRanks]]:
    exchange = select_kernels("cpu", dtype, 64).exchange
    if exchange is None:
        pytest.skip("no C++ kernels")
    memory = SharedMemory.new(size)
    yield [SharedMemoryRanks(exchange, memory, rank, size) for rank in range(size)]
    os.close(memory.fd)


def on_all(ranks: list[SharedMemoryRanks], call: Callable[[SharedMemoryRanks], torch.Tensor]) -> list[torch.Tensor]:
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


def test_ranks_do_not_wait_for_one_that_has_ended() -> None:
    with ranks_of(torch.float32, 3) as ranks, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(ranks[0].sum, torch.zeros(4))
        ranks[1]._memory.close_exchange()
        with pytest.raises(ExchangeClosed):
            waits.result()
