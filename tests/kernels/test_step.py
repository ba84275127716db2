"""The first and the last kernel of a step: tensors from slot tables, sampled tokens into slot tables."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from tests.kernels.references import allowed_rows_reference, finish_step_reference, prepare_step_reference

from stoker.engine.kernels.gpu.allowed_rows import allowed_rows
from stoker.engine.kernels.gpu.finish_step import finish_step
from stoker.engine.kernels.gpu.prepare_step import StepRows, StepTensors, prepare_step

BLOCK_SIZE, WIDTH, SLOTS = 8, 700, 5
STEPS = [  # (slot, tokens computed before, tokens of this step) of each row
    [(0, 0, 1)],
    [(3, 17, 1), (0, 8, 1), (4, 7, 1), (2, 0, 1)],
    [(1, 0, 11), (0, 600, 1), (4, 3, 300), (2, 15, 2)],
    [(2, 5, 1), (-1, 9, 0), (-1, 0, 0)],
    [(1, 30, 5), (4, 0, 3), (-1, 0, 0), (-1, 77, 0)],
    [(-1, 3, 0), (-1, 0, 0)],
]


def rows_of(step: list[tuple[int, int, int]], device: torch.device) -> StepRows:
    slots, computed, counts = (
        torch.tensor(column, dtype=torch.int32, device=device) for column in zip(*step, strict=True)
    )
    starts = torch.cat((torch.zeros_like(counts[:1]), counts.cumsum(0).int()))
    return StepRows(slots, computed, starts)


@pytest.mark.parametrize("padding", [0, 1, 300])
@pytest.mark.parametrize("step", STEPS)
def test_tensors_are_built_from_tables(step: list[tuple[int, int, int]], padding: int, device: torch.device):
    rows = rows_of(step, device)
    num_tokens = int(rows.query_start[-1]) + padding
    token_table = torch.randint(0, 1 << 30, (SLOTS, WIDTH), dtype=torch.int32, device=device)
    block_table = torch.randint(0, 1 << 30, (SLOTS, WIDTH // BLOCK_SIZE + 1), dtype=torch.int32, device=device)

    def out() -> StepTensors:
        def column(count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.full((count,), -7, dtype=dtype, device=device)

        return StepTensors(
            column(num_tokens, torch.int64), column(num_tokens, torch.int64), column(num_tokens, torch.int64),
            column(len(step), torch.int32), torch.full((len(step) + 1, 90), -7, dtype=torch.int32, device=device),
            column(len(step), torch.int64),
        )  # fmt: skip

    expected, found = out(), out()
    prepare_step_reference(rows, token_table, block_table, BLOCK_SIZE, expected)
    prepare_step(rows, token_table, block_table, BLOCK_SIZE, found)
    for name in StepTensors.__slots__:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize("num_rows", [1, 3, 130])
def test_sampled_tokens_are_kept_and_counted(num_rows: int, device: torch.device):
    slots = torch.randperm(num_rows + 4)[:num_rows].int()
    slots[torch.rand(num_rows) < 0.2] = -1
    columns = [
        torch.randint(-1, 20, (num_rows,)), slots, torch.randint(0, 30, (num_rows,)), torch.rand(num_rows) < 0.7
    ]  # fmt: skip
    sampled, slots, lengths, is_sampled = (each.int().to(device) for each in columns)
    has_penalties = (torch.rand(num_rows + 4) < 0.5).int().to(device)
    counts = torch.randint(-32768, 32768, (num_rows + 4, 21)).to(torch.int16)
    counts[0::3] = 32767
    counts[1::3] = -1  # in the prompt, with the highest count
    tables = [
        (torch.full((num_rows + 4, 33), -7, dtype=torch.int32, device=device), counts.clone().to(device))
        for _ in range(2)
    ]
    for (token_table, counted), finish in zip(tables, (finish_step_reference, finish_step), strict=True):
        finish(sampled, slots, lengths, is_sampled, token_table, has_penalties, counted)
    for expected, found in zip(*tables, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("vocab_size", [31, 4100])
def test_tokens_that_are_not_allowed_become_minus_infinity(vocab_size: int, device: torch.device):
    logits = torch.randn(5, vocab_size + 3, device=device)[:, :vocab_size]  # rows of a wider tensor
    rows = torch.tensor([4, 0, 3], dtype=torch.int32, device=device)
    masks = torch.randint(-(1 << 31), 1 << 31, (3, -(-vocab_size // 32)), dtype=torch.int64).int().to(device)
    masks[1] = -1
    found = allowed_rows(logits, rows, masks)
    assert torch.equal(found, allowed_rows_reference(logits, rows, masks))
    assert torch.equal(found[1], logits[0])
    is_forbidden = found[0] == -torch.inf
    assert 0 < int(is_forbidden.sum()) < vocab_size
