from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("triton")

import torch
from tests.unit.engine.runner.plans import admission, block_rows, ids, make_plan

from stoker.engine.core.prefix_cache import NO_BLOCK
from stoker.engine.runner.cuda.slot_arena import IN_PROMPT, SlotArena, arena_bytes
from stoker.engine.runner.slot_table import SlotTable
from stoker.engine.sampling.sampling_table import SamplingTable
from stoker.engine.step import StepPlan

SLOTS, MODEL_LEN, BLOCK_SIZE, VOCAB = 4, 12, 4, 50


class Tables:
    """The host's tables and the device's, which take over the same plans."""

    def __init__(self) -> None:
        self.sampling = SamplingTable(SLOTS, VOCAB, (2,))
        self.host = SlotTable(SLOTS, MODEL_LEN, BLOCK_SIZE, self.sampling)
        self.arena = SlotArena(SLOTS, MODEL_LEN, BLOCK_SIZE, VOCAB, torch.device("cpu"))

    def apply(self, plan: StepPlan) -> None:
        self.arena.apply(plan, self.sampling, *self.host.apply(plan))

    def admit(self, slot: int, token_ids: list[int], **params: object) -> None:
        self.apply(make_plan(slots=ids(slot), admissions=[admission(slot, token_ids, [7], **params)]))


@pytest.fixture
def tables() -> Tables:
    return Tables()


def test_tokens_and_blocks_are_those_of_the_host(tables: Tables):
    first = [admission(1, [5, 6, 7, 8, 9], [3, 1]), admission(3, [4], [2])]
    tables.apply(make_plan(admissions=first))
    tables.apply(make_plan(block_slots=ids(3, 1, 3), block_ids=block_rows([9, 8, 6])))
    tables.apply(make_plan(released_slots=[1], admissions=[admission(1, [40, 41], [5])]))
    assert torch.equal(tables.arena.block_ids[0], torch.from_numpy(tables.host.block_ids[0]))
    assert torch.equal(tables.arena.token_ids, torch.from_numpy(tables.host.token_ids))
    assert tables.arena.block_ids[0][3].tolist() == [2, 9, 6]


def test_each_group_of_layers_has_a_table(tables: Tables):
    host = SlotTable(SLOTS, MODEL_LEN, BLOCK_SIZE, tables.sampling, num_groups=2)
    arena = SlotArena(SLOTS, MODEL_LEN, BLOCK_SIZE, VOCAB, torch.device("cpu"), num_groups=2)
    first = replace(admission(1, [5, 6, 7, 8, 9], []), block_ids=[[3, 1], [NO_BLOCK, 4]])
    rows = np.array([[9, 8], [7, 6]], np.int32)
    for plan in (make_plan(admissions=[first]), make_plan(block_slots=ids(1, 3), block_ids=rows)):
        arena.apply(plan, tables.sampling, *host.apply(plan))
    assert [table[1].tolist() for table in arena.block_ids] == [[3, 1, 9], [0, 4, 8]]  # never an id below 0
    assert [table[3, 0].item() for table in arena.block_ids] == [7, 6]
    more = arena_bytes(SLOTS, MODEL_LEN, BLOCK_SIZE, VOCAB, 2) - arena_bytes(SLOTS, MODEL_LEN, BLOCK_SIZE, VOCAB)
    assert more == 4 * arena.block_ids[1].numel()


def test_what_a_request_asks_of_the_sampler_is_in_the_slots_columns(tables: Tables):
    tables.admit(2, [1], temperature=0.5, top_k=3, top_p=0.25, min_p=0.125, frequency_penalty=0.75)
    columns = tables.arena.sampling
    assert [column[2].item() for column in columns[:4]] == [0.5, 3, 0.25, 0.125]
    assert (columns.frequency[2].item(), columns.repetition[2].item()) == (0.75, 1)
    assert (columns.seed_low[2].item(), columns.seed_high[2].item()) == (2, 0)
    assert (columns.has_penalties[2].item(), columns.has_bias[2].item()) == (1, 0)


def test_a_greedy_sequence_asks_for_nothing_else(tables: Tables):
    tables.admit(0, [1], temperature=0.5, top_k=3, top_p=0.25, min_p=0.5)
    tables.admit(0, [1], temperature=0, top_k=3, top_p=0.25, min_p=0.5)
    columns = tables.arena.sampling
    assert [column[0].item() for column in columns[:4]] == [0, 0, 1, 0]


def test_a_seed_has_64_bits(tables: Tables):
    plan = make_plan(admissions=[admission(1, [1], [0])])
    seeded = [replace(plan.admissions[0], seed=2**64 - 2)]
    tables.apply(make_plan(admissions=seeded))
    columns = tables.arena.sampling
    assert (columns.seed_low[1].item(), columns.seed_high[1].item()) == (-2, -1)


def test_tokens_of_prompt_and_answer_are_counted_apart(tables: Tables):
    given = admission(1, [5, 5, 6, 6, 6, 7], [0], repetition_penalty=1.5)
    inputs = replace(given.inputs, prompt_token_ids=given.token_ids[:3])
    resumed = replace(given, inputs=inputs, generated=given.token_ids[3:])  # after a preemption
    tables.apply(make_plan(admissions=[resumed]))
    counts = tables.arena.sampling.counts[1].numpy()
    assert {int(at): int(counts[at]) for at in np.flatnonzero(counts)} == {
        5: int(IN_PROMPT),
        6: int(IN_PROMPT) + 2,
        7: 1,
    }


def test_a_bias_is_added_and_what_ends_is_forbidden_until_it_may_come(tables: Tables):
    tables.admit(1, [9, 9, 9], logit_bias={4: 1.5, 2: 3.0}, min_tokens=2, max_tokens=5, stop_token_ids=(8,))
    row = tables.arena.sampling.bias[1]
    forbidden = {2: -torch.inf, 4: 1.5, 8: -torch.inf}

    def biases() -> dict[int, float]:
        return {int(at): float(row[at]) for at in row.nonzero()[:, 0]}

    assert biases() == forbidden
    tables.apply(make_plan(slots=ids(1), num_computed=ids(3)))  # samples the second token
    assert biases() == forbidden
    tables.apply(make_plan(slots=ids(1), num_computed=ids(4)))  # the third, with which it may end
    assert biases() == {2: 3.0, 4: 1.5}
    tables.admit(1, [1])
    assert tables.arena.sampling.has_bias[1] == 0


def test_only_allowed_tokens_and_no_bad_words_of_one_token_have_a_finite_bias(tables: Tables):
    tables.admit(1, [9], allowed_token_ids=(4, 6, 7), logit_bias={4: 1.5, 3: 2.0}, bad_word_ids=((6,), (1, 2)))
    row = tables.arena.sampling.bias[1]
    assert {int(at): float(row[at]) for at in row.isfinite().nonzero()[:, 0]} == {4: 1.5, 7: 0.0}
    assert tables.arena.sampling.has_bias[1] == 1


def test_tokens_that_the_host_sampled_are_in_the_table_for_the_next_step(tables: Tables):
    tables.admit(2, [1, 2])
    tables.arena.write_tokens(np.array([2, 0]), np.array([2, 5]), ids(30, 31))
    assert tables.arena.token_ids[2, :3].tolist() == [1, 2, 30]
    assert tables.arena.token_ids[0, 5] == 31


def test_its_size_is_known_before_it_is_there(tables: Tables):
    arena = tables.arena
    numbers = arena.token_ids.numel() + arena.block_ids[0].numel() + 12 * SLOTS
    tables_bytes = arena.sampling.bias.nbytes + arena.sampling.counts.nbytes
    assert arena_bytes(SLOTS, MODEL_LEN, BLOCK_SIZE, VOCAB) == 4 * numbers + tables_bytes
