from __future__ import annotations

from dataclasses import replace

import numpy as np

from stoker.engine.core.prefix_cache import NO_BLOCK

from .plans import admission, block_rows, ids, make_plan, make_table


def test_an_admission_fills_its_slot_and_only_that():
    table = make_table()
    table.apply(make_plan(admissions=[admission(2, [7, 8, 9], [5])]))
    assert table.token_ids[2, :3].tolist() == [7, 8, 9]
    assert table.num_tokens.tolist() == [0, 0, 3, 0]
    assert table.block_ids[0, 2, 0] == 5
    assert table.num_blocks.tolist() == [0, 0, 1, 0]


def test_new_blocks_are_appended_in_order_wherever_they_stand_in_the_plan():
    table = make_table()
    table.apply(make_plan(admissions=[admission(1, [1], [3]), admission(3, [1], [])]))
    table.apply(make_plan(block_slots=ids(3, 1, 3, 1), block_ids=block_rows([8, 6, 9, 7])))
    assert table.block_ids[0, 1].tolist() == [3, 6, 7]
    assert table.block_ids[0, 3, :2].tolist() == [8, 9]
    assert table.num_blocks.tolist() == [0, 3, 0, 2]


def test_each_group_of_layers_has_a_table_of_its_own():
    table = make_table(num_groups=2)
    first = replace(admission(1, [1, 2], []), block_ids=[[3, 4], [NO_BLOCK, 5]])
    table.apply(make_plan(admissions=[first], block_ids=block_rows([], [])))
    indices, _ = table.apply(make_plan(block_slots=ids(1), block_ids=block_rows([6], [7])))
    assert indices.tolist() == [1 * 3 + 2]
    assert table.block_ids[:, 1].tolist() == [[3, 4, 6], [NO_BLOCK, 5, 7]]
    assert table.blocks_at(ids(1, 1), np.array([1, 2])).tolist() == [[4, 6], [5, 7]]


def test_a_sampled_token_becomes_the_next_known_one():
    table = make_table()
    table.apply(make_plan(admissions=[admission(0, [4], [0]), admission(2, [5, 6], [1])]))
    table.append(ids(2, 0), ids(11, 12))
    assert table.token_ids[0, :2].tolist() == [4, 12]
    assert table.token_ids[2, :3].tolist() == [5, 6, 11]
    assert table.num_tokens.tolist() == [2, 0, 3, 0]


def test_the_token_that_fills_the_context_has_a_place():
    table = make_table(max_model_len=3)
    table.apply(make_plan(admissions=[admission(0, [1, 2, 3], [0])]))
    table.append(ids(0), ids(9))
    assert table.token_ids[0].tolist() == [1, 2, 3, 9]


def test_a_slot_remembers_nothing_of_who_held_it_before():
    table = make_table()
    before = {"presence_penalty": 1.0, "logit_bias": {3: 9.0}, "min_tokens": 5, "logprobs": 2, "prompt_logprobs": 0,
              "allowed_token_ids": (3,), "bad_word_ids": ((1, 2),)}  # fmt: skip
    table.apply(make_plan(admissions=[admission(0, [1, 2, 3], [0, 1], **before)]))
    table.sampling.record(ids(0), ids(9))
    table.apply(make_plan(released_slots=[0], admissions=[admission(0, [4], [2], frequency_penalty=1.0)]))
    sampling = table.sampling
    assert (table.num_tokens[0], table.num_blocks[0]) == (1, 1)
    assert not sampling.counts[0].any()
    assert not sampling.has_bias[0]
    assert not sampling.has_bad_words[0]
    assert sampling.bias == sampling.allowed == sampling.bad_words == {}
    assert not sampling.ending_ids
    assert sampling.num_logprobs[0] == sampling.num_prompt_logprobs[0] == -1
    assert sampling.presence[0] == 0
    assert sampling.end_allowed_at[0] == 1
