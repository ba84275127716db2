from __future__ import annotations

from dataclasses import replace

from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core import SchedulerSettings
from stoker.engine.core.prefix_cache import NO_BLOCK
from stoker.engine.core.request import Request
from stoker.engine.core.sequence_blocks import SequenceBlocks
from stoker.engine.core.slot_columns import SlotColumns
from stoker.engine.core.steps_in_flight import StepsInFlight

SETTINGS = SchedulerSettings(num_blocks=10, block_size=4, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=30)


def make(*windows: int | None) -> tuple[SequenceBlocks, SlotColumns]:
    """windows: of each group of layers; one group without a window if there are none."""
    columns, windows = SlotColumns(4, 4), windows or (None,)
    settings = replace(SETTINGS, windows=windows, num_blocks=10 * len(windows))
    return SequenceBlocks(settings, columns), columns


def running(blocks: SequenceBlocks, columns: SlotColumns, arrival: int, num_tokens: int) -> Request:
    """A sequence with a slot, what the cache has for it, and reserved blocks for the rest."""
    record = EngineRequest(request_id=str(arrival), inputs=RequestInputs(list(range(num_tokens)), SamplingParams()))
    request = Request.of(
        record,
        arrival=arrival,
        seed=0,
        eos_token_ids=(),
        max_length=30,
        reads_cache=True,
    )
    columns.take(request)
    cached = blocks.find_cached(request)
    num_new = -(-num_tokens // 4) - cached.num_blocks
    blocks.admit(request, cached, blocks.num_to_reserve(num_new, 4 * cached.num_blocks, cached.num_blocks))
    return request


def test_blocks_are_reserved_at_admission_and_taken_as_tokens_are_scheduled():
    blocks, columns = make()
    request = running(blocks, columns, 0, 10)
    assert (blocks.num_reserved, blocks.num_available, blocks.pool.num_free) == (3, 7, 10)
    assert blocks.extend_to(request, 5) == [0, 1]
    assert (blocks.num_reserved, blocks.num_available, blocks.pool.num_free) == (1, 7, 8)
    assert (columns.capacity[0], request.num_published) == (8, 1)
    assert blocks.extend_to(request, 8) == []
    assert request.num_published == 2
    assert blocks.extend_to(request, 10) == [2]
    assert blocks.append_new(request, 1) == [3]  # beyond the reserved ones
    assert (blocks.num_reserved, blocks.num_available) == (0, 6)


def test_a_second_sequence_shares_published_blocks_but_computes_its_last_token():
    blocks, columns = make()
    blocks.extend_to(running(blocks, columns, 0, 8), 8)
    second = running(blocks, columns, 1, 8)
    assert second.block_ids == [[0]]  # the second block holds its last known token
    assert (columns.computed[1], columns.capacity[1], second.num_cached_tokens) == (4, 4, 4)
    assert blocks.pool.ref_count(0) == 2
    assert (blocks.num_queried_tokens, blocks.num_hit_tokens) == (16, 4)
    longer = running(blocks, columns, 2, 9)
    assert longer.block_ids == [[0, 1]]


def test_several_sequences_get_one_more_block_each():
    blocks, columns = make()
    first, second = running(blocks, columns, 0, 4), running(blocks, columns, 1, 6)
    blocks.extend_to(first, 4)
    blocks.extend_to(second, 4)
    assert blocks.append_one_each([first, second], [0, 1]) == [2, 3]
    assert (first.block_ids, second.block_ids) == ([[0, 2]], [[1, 3]])
    assert columns.capacity[:2].tolist() == [8, 8]
    assert (first.num_reserved, second.num_reserved, blocks.num_reserved) == (0, 0, 0)


def test_a_sequence_that_leaves_loses_its_blocks_and_its_reservation():
    blocks, columns = make()
    request = running(blocks, columns, 0, 10)
    blocks.extend_to(request, 4)
    assert blocks.detach(request) == [0]
    assert (request.block_ids, request.num_published, blocks.num_reserved) == ([], 0, 0)
    blocks.pool.release([0])
    blocks.forget_cached()
    assert running(blocks, columns, 1, 8).block_ids == [[]]


# ---- groups of layers


def test_each_group_gets_a_block_for_the_same_tokens():
    blocks, columns = make(None, 6)
    request = running(blocks, columns, 0, 10)
    assert (blocks.num_reserved, blocks.num_available) == (6, 14)
    assert blocks.extend_to(request, 8) == [0, 1, 2, 3]
    assert request.block_ids == [[0, 2], [1, 3]]
    assert (columns.capacity[0], blocks.num_reserved) == (8, 2)
    assert blocks.append_one_each([request], [0]) == [4, 5]
    assert (columns.capacity[0], blocks.num_reserved) == (12, 0)


def test_blocks_before_a_window_are_given_back():
    """A query at position 16 that sees 6 tokens needs those from position 11 on: the third block and later ones."""
    blocks, columns = make(None, 6)
    steps = StepsInFlight(blocks.pool)
    request = running(blocks, columns, 0, 20)
    blocks.extend_to(request, 16)
    columns.computed[0], columns.last_step[0] = 16, -1
    num_free = blocks.pool.num_free
    blocks.release_passed(request, steps)
    assert request.block_ids == [[0, 2, 4, 6], [NO_BLOCK, NO_BLOCK, 5, 7]]
    assert blocks.pool.num_free == num_free + 2
    blocks.release_passed(request, steps)  # nothing more
    assert blocks.pool.num_free == num_free + 2
    assert sorted(blocks.detach(request)) == [0, 2, 4, 5, 6, 7]


def test_blocks_that_a_step_may_still_use_are_given_back_after_it():
    blocks, columns = make(4)
    steps = StepsInFlight(blocks.pool)
    request = running(blocks, columns, 0, 9)
    blocks.extend_to(request, 8)
    columns.computed[0], columns.last_step[0] = 8, 0
    blocks.release_passed(request, steps)
    assert (request.block_ids, blocks.pool.num_free) == ([[NO_BLOCK, 1]], 8)
    assert (request.passing_until, steps.holds_tables) == (0, False)


def test_a_prefix_is_found_where_every_group_has_what_its_window_reaches():
    """16 tokens are cached in both groups. After the first three blocks of the window's group are gone, the prefix of
    16 tokens is still whole: its next query, at position 16, needs positions from 13 on. Shorter ones are not."""
    blocks, columns = make(None, 4)
    first = running(blocks, columns, 0, 17)
    blocks.extend_to(first, 16)
    for block_id in first.block_ids[1][:3]:
        blocks.cache.forget(block_id)
    second = running(blocks, columns, 1, 17)
    assert second.block_ids == [first.block_ids[0], [NO_BLOCK, NO_BLOCK, NO_BLOCK, first.block_ids[1][3]]]
    assert columns.computed[1] == 16
    shorter = running(blocks, columns, 2, 14)
    assert (shorter.block_ids, columns.computed[2]) == ([[], []], 0)


def test_a_block_is_found_in_its_own_group_only():
    blocks, columns = make(None, None)
    first = running(blocks, columns, 0, 9)
    blocks.extend_to(first, 8)
    assert running(blocks, columns, 1, 9).block_ids == first.block_ids == [[0, 2], [1, 3]]
    blocks.cache.forget(1)
    assert running(blocks, columns, 2, 9).block_ids == [[], []]
