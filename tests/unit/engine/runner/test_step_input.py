from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from stoker.engine.api import PoolingParams, RequestInputs
from stoker.engine.runner.step_input import build_step_input, logit_tokens
from stoker.engine.step.plan import Admission

from .plans import admission, block_rows, ids, make_plan, make_table

CPU = torch.device("cpu")


def test_a_mixed_step_flattens_chunks_and_decode_rows():
    """Row 0 decodes its sixth token, row 1 computes the tokens 2 to 4 of a prompt of five."""
    table = make_table()
    plan = make_plan(
        admissions=[admission(3, [10, 11, 12, 13, 14, 15], [7, 2]), admission(1, [20, 21, 22, 23, 24], [5, 9])],
        slots=ids(3, 1),
        num_computed=ids(5, 2),
        num_tokens=ids(1, 3),
        num_outputs=np.array([1, 1], np.int32),
    )
    table.apply(plan)
    (step,) = build_step_input(plan, table, CPU)
    assert step.token_ids.tolist() == [15, 22, 23, 24]
    assert step.positions.tolist() == [5, 2, 3, 4]
    assert step.slot_mapping.tolist() == [2 * 4 + 1, 5 * 4 + 2, 5 * 4 + 3, 9 * 4]
    assert step.query_start.tolist() == [0, 1, 4]
    assert step.context_lens.tolist() == [6, 5]
    assert step.block_tables.tolist() == [[7, 2], [5, 9]]
    assert (step.max_query_len, step.max_context_len) == (3, 6)
    assert [x.dtype for x in (step.token_ids, step.positions, step.slot_mapping)] == [torch.int64] * 3
    assert [x.dtype for x in (step.query_start, step.context_lens, step.block_tables)] == [torch.int32] * 3


def test_a_decode_row_reads_the_token_that_the_runner_sampled():
    table = make_table()
    table.apply(make_plan(admissions=[admission(0, [4, 5], [0])], num_tokens=ids(2)))
    table.append(ids(0), ids(33))
    assert build_step_input(make_plan(num_computed=ids(2)), table, CPU)[0].token_ids.tolist() == [33]


def test_each_group_of_layers_has_its_own_blocks():
    table = make_table(num_groups=2)
    first = replace(admission(2, [7, 8, 9, 10, 11], []), block_ids=[[3, 4], [6, 5]])
    plan = make_plan(
        admissions=[first], block_ids=block_rows([], []), slots=ids(2), num_computed=ids(3), num_tokens=ids(2)
    )
    table.apply(plan)
    one, other = build_step_input(plan, table, CPU)
    assert (one.slot_mapping.tolist(), other.slot_mapping.tolist()) == ([3 * 4 + 3, 4 * 4], [6 * 4 + 3, 5 * 4])
    assert (one.block_tables.tolist(), other.block_tables.tolist()) == ([[3, 4]], [[6, 5]])
    assert one.token_ids is other.token_ids


def test_slots_beyond_31_bits_do_not_wrap():
    """block_id * block_size was int32 once more than 2**31 tokens fit into the cache."""
    table = make_table(block_size=4)
    plan = make_plan(admissions=[admission(0, [1], [2**30])])
    table.apply(plan)
    assert build_step_input(plan, table, CPU)[0].slot_mapping.tolist() == [2**32]


def test_only_sampled_rows_and_asked_for_prompt_tokens_get_logits():
    """Rows: a chunk in the middle of a prompt, a prompt with logprobs that ends here, its like decoding."""
    table = make_table()
    plan = make_plan(
        admissions=[
            admission(0, [1] * 8, [0, 1]),
            admission(1, [1] * 5, [2, 3], prompt_logprobs=1),
            admission(2, [1] * 3, [4], prompt_logprobs=0),
        ],
        slots=ids(0, 1, 2),
        num_computed=ids(0, 1, 3),
        num_tokens=ids(4, 4, 1),
        num_outputs=np.array([0, 1, 1], np.int32),
    )
    table.apply(plan)
    wanted = logit_tokens(plan, table)
    assert wanted.outputs.tolist() == [7, 8]
    assert wanted.output_rows.tolist() == [1, 2]
    assert wanted.prompt.tolist() == [4, 5, 6]  # positions 1, 2, 3 of row 1 speak about 2, 3, 4
    assert wanted.prompt_rows.tolist() == [1, 1, 1]
    union = wanted.union(9)
    assert union is not None
    assert union.tolist() == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("num_prompt_logprobs", [None, 0])
def test_the_outputs_of_a_row_are_its_last_tokens(num_prompt_logprobs: int | None):
    """Rows: all tokens of a chunk, the last two of one, none of one, a single token."""
    table = make_table()
    tokens = [1] * 6
    begins = [admission(slot, tokens, [2 * slot, 2 * slot + 1]) for slot in range(3)]
    plan = make_plan(
        admissions=[*begins, admission(3, tokens, [6, 7], prompt_logprobs=num_prompt_logprobs)],
        slots=ids(0, 1, 2, 3),
        num_computed=ids(0, 1, 2, 5),
        num_tokens=ids(3, 5, 2, 1),
        num_outputs=ids(3, 2, 0, 1),
    )
    table.apply(plan)
    wanted = logit_tokens(plan, table)
    assert wanted.outputs.tolist() == [0, 1, 2, 6, 7, 10]
    assert wanted.output_rows.tolist() == [0, 0, 0, 1, 1, 3]


def test_a_batch_of_decode_rows_needs_no_selection():
    table = make_table()
    plan = make_plan(
        admissions=[admission(0, [1], [0]), admission(1, [1], [1])],
        slots=ids(0, 1),
        num_computed=ids(0, 0),
        num_tokens=ids(1, 1),
        num_outputs=np.array([1, 1], np.int32),
    )
    table.apply(plan)
    assert logit_tokens(plan, table).union(2) is None


def test_heads_get_the_tokens_that_they_need():
    """Slots: one that generates, one with a vector of its last token, one with that and one of all tokens, and a chunk
    of a text that is not at its end."""
    table = make_table(whole_tasks=frozenset({"token_embed"}))
    tasks = {1: PoolingParams(("embed",)), 2: PoolingParams(("embed", "token_embed"), first=1)}
    tasks[3] = PoolingParams(("embed",))
    begins = [
        Admission(slot, RequestInputs([1] * 6, task), [[2 * slot, 2 * slot + 1]], 0) for slot, task in tasks.items()
    ]
    plan = make_plan(
        admissions=[admission(0, [1] * 6, [0, 1]), *begins],
        slots=ids(1, 0, 2, 3),
        num_computed=ids(4, 5, 0, 0),
        num_tokens=ids(2, 1, 6, 4),
        num_outputs=ids(1, 1, 1, 0),
    )
    table.apply(plan)
    wanted = logit_tokens(plan, table)
    assert wanted.outputs.tolist() == [1, 2, 8]
    assert wanted.sampled.tolist() == [1]
    found = {
        each.task: (each.rows.tolist(), each.tokens.tolist(), each.starts.tolist(), each.first)
        for each in wanted.pooled
    }
    assert found == {
        "embed": ([0, 2], [1, 8], [0, 1, 2], [0, 1]),
        "token_embed": ([2], [3, 4, 5, 6, 7, 8], [0, 6], [1]),
    }
    union = wanted.union(13)
    assert union is not None
    assert union.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_head_of_the_first_token_needs_no_other():
    table = make_table(first_tasks=frozenset({"classify"}))
    texts = [Admission(slot, RequestInputs([1] * 6, PoolingParams(("classify",))), [[slot]], 0) for slot in (0, 1)]
    plan = make_plan(
        admissions=[*texts, admission(2, [1] * 6, [2, 3])],
        slots=ids(0, 2, 1),
        num_computed=ids(0, 5, 0),
        num_tokens=ids(4, 1, 3),
        num_outputs=ids(1, 1, 1),
    )
    table.apply(plan)
    wanted = logit_tokens(plan, table)
    assert [(each.tokens.tolist(), each.starts.tolist()) for each in wanted.pooled] == [([0, 5], [0, 1, 2])]
    union = wanted.union(8)
    assert union is not None
    assert union.tolist() == [0, 4, 5]


def test_texts_of_one_token_are_pooled_in_a_step_of_single_tokens():
    table = make_table()
    begins = [Admission(0, RequestInputs([7], PoolingParams(("embed",))), [[0]], 0), admission(1, [8], [1])]
    plan = make_plan(
        admissions=begins, slots=ids(0, 1), num_computed=ids(0, 0), num_tokens=ids(1, 1), num_outputs=ids(1, 1)
    )
    table.apply(plan)
    wanted = logit_tokens(plan, table)
    assert (wanted.sampled.tolist(), [each.tokens.tolist() for each in wanted.pooled]) == ([1], [[0]])
    assert wanted.union(2) is None
