from __future__ import annotations

import torch

from stoker.engine.layers.step_input import StepInput
from stoker.engine.runner.earlier_ids import earlier_ids

TOKEN_IDS = torch.arange(100, 130, dtype=torch.int32).view(3, 10)  # of three slots


def step_of(rows: list[tuple[int, int, int]]) -> StepInput:
    """rows: slot, computed tokens, tokens of the step."""
    counts = torch.tensor([count for *_, count in rows])
    positions = torch.cat([torch.arange(first, first + count) for _, first, count in rows])
    nothing = torch.empty(0, dtype=torch.int32)
    return StepInput(
        token_ids=positions,  # are not read
        positions=positions,
        slot_mapping=positions,
        query_start=torch.cat((torch.zeros(1), counts.cumsum(0))).int(),
        context_lens=nothing.new_zeros(len(rows)),
        block_tables=nothing,
        max_query_len=int(counts.max()),
        max_context_len=10,
        seq_slots=torch.tensor([slot for slot, *_ in rows], dtype=torch.int32),
    )


def test_a_chunk_begins_with_the_ids_before_it():
    """A new sequence in slot 2, a chunk of slot 0, and a decode row of slot 1."""
    found = earlier_ids(step_of([(2, 0, 3), (0, 4, 2), (1, 1, 1)]), TOKEN_IDS, 2)
    assert found.tolist() == [[-1, 120, 121, 103, 104, 110], [-1, -1, 120, 102, 103, -1]]


def test_a_padding_row_has_any_ids():
    found = earlier_ids(step_of([(1, 5, 1), (-1, 0, 2)]), TOKEN_IDS, 3)
    assert found[:, 0].tolist() == [114, 113, 112]
    assert found.shape == (3, 3)
