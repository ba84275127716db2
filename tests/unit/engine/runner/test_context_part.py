"""Which tokens a rank keeps, and where."""

from __future__ import annotations

import pytest
import torch

from stoker.engine.layers.step_input import StepInput
from stoker.engine.runner.context_part import ContextPart

BLOCK = 16


def step_of(positions: list[int], block: int) -> StepInput:
    """Of one row, all in block `block`."""
    at = torch.tensor(positions)
    return StepInput(
        token_ids=at,
        positions=at,
        slot_mapping=block * BLOCK + at % BLOCK,
        query_start=torch.tensor([0, len(positions)], dtype=torch.int32),
        context_lens=torch.tensor([positions[-1] + 1], dtype=torch.int32),
        block_tables=torch.tensor([[block]], dtype=torch.int32),
        max_query_len=len(positions),
        max_context_len=positions[-1] + 1,
    )


@pytest.mark.parametrize(("count", "run"), [(2, 1), (2, 4), (4, 2), (2, 8), (16, 1)])
def test_every_token_is_kept_once_and_in_order(count: int, run: int) -> None:
    step = step_of(list(range(BLOCK)), 3)
    found = [ContextPart(index, count, run, BLOCK) for index in range(count)]
    for position in range(BLOCK):
        slots = [int(part.of(step).slot_mapping[position]) for part in found]
        assert [slot >= 0 for slot in slots] == [index == position // run % count for index in range(count)]
    for part in found:
        kept = part.of(step).slot_mapping
        first = 3 * part.slots
        assert kept[kept >= 0].tolist() == list(range(first, first + part.slots))


@pytest.mark.parametrize(("count", "run"), [(2, 1), (3, 2), (4, 2)])
def test_lengths_are_those_of_the_kept_tokens(count: int, run: int) -> None:
    owners = [position // run % count for position in range(50)]
    for index in range(count):
        part = ContextPart(index, count, run, 2 * count * run)
        expected = [owners[:length].count(index) for length in range(51)]
        assert part.num_kept(torch.arange(51)).tolist() == expected


def test_each_query_sees_what_is_kept_up_to_its_own_token() -> None:
    step = ContextPart(1, 2, 2, BLOCK).of(step_of([5, 6, 7, 8], 0))
    assert step.context_lens.tolist() == [4]  # 2, 3, 6, 7
    assert step.visible is not None
    assert step.visible.tolist() == [2, 3, 4, 4]
    one = step.of_tokens(torch.tensor([1, -1]))
    assert one.context_lens.tolist() == [3, 0]
    assert one.visible is not None
    assert one.visible.tolist() == [3, 0]
    assert one.visible.dtype == one.context_lens.dtype == torch.int32


def test_a_block_is_divided_evenly() -> None:
    with pytest.raises(ValueError, match="blocks of 16 tokens"):
        ContextPart(0, 3, 1, BLOCK)
