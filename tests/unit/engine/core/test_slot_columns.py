from __future__ import annotations

import numpy as np

from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core.request import NO_SLOT, Request
from stoker.engine.core.slot_columns import SlotColumns


def request(arrival: int, num_tokens: int) -> Request:
    tokens = list(range(100, 100 + num_tokens))
    record = EngineRequest(request_id=str(arrival), inputs=RequestInputs(tokens, SamplingParams()), route=70)
    return Request.of(
        record,
        arrival=arrival,
        seed=0,
        eos_token_ids=(),
        max_length=50,
        reads_cache=True,
    )


def test_the_lowest_free_slot_is_taken_and_starts_uncomputed():
    columns = SlotColumns(num_slots=3, block_size=4)
    first, second = request(7, 6), request(8, 1)
    columns.take(first)
    columns.take(second)
    assert (first.slot, second.slot, columns.free_slots) == (0, 1, [2])
    assert columns.serial.tolist() == [7, 8, -1]
    assert (columns.known[0], columns.target[0], columns.max_length[0]) == (6, 6, 22)
    assert (columns.computed[0], columns.capacity[0], columns.route[0]) == (0, 0, 70)


def test_a_slot_that_is_given_back_is_free_and_released_by_the_next_plan_alone():
    columns = SlotColumns(num_slots=2, block_size=4)
    sequence = request(7, 6)
    columns.take(sequence)
    columns.free(columns.give_back(sequence))
    assert (sequence.slot, columns.serial.tolist(), columns.free_slots) == (NO_SLOT, [-1, -1], [1, 0])
    assert columns.pop_released() == [0]
    assert columns.pop_released() == []


def test_slots_released_by_a_failed_plan_are_released_again_unless_they_are_taken():
    columns = SlotColumns(num_slots=4, block_size=4)
    columns.free_slots, columns.released_slots = [0, 1, 3], [1]
    columns.release_again([0, 1, 2])
    assert columns.released_slots == [1, 0]  # 1 is still to be released, 2 has a new sequence


def test_sampled_tokens_join_the_list_of_tokens_when_they_are_read():
    columns = SlotColumns(num_slots=2, block_size=4)
    first, second = request(0, 6), request(1, 3)
    columns.take(first)
    columns.take(second)
    for token in (1, 2):
        lengths = columns.append(np.array([0, 1]), np.array([token, 10 * token], np.int32))
    assert lengths.tolist() == [8, 5]
    columns.read_tail(first)
    assert first.token_ids == [100, 101, 102, 103, 104, 105, 1, 2]
    columns.read_tail(first)
    assert len(first.token_ids) == 8
    # the second one's tail has passed the end of a block: its full block is read before, as the scheduler does
    second.token_ids.append(10)
    columns.read_tail(second)
    assert second.token_ids == [100, 101, 102, 10, 20]
