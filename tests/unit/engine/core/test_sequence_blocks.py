from __future__ import annotations

from stoker.engine.api import EngineRequest, SamplingParams
from stoker.engine.core import SchedulerSettings
from stoker.engine.core.request import Request
from stoker.engine.core.sequence_blocks import SequenceBlocks
from stoker.engine.core.slot_columns import SlotColumns

SETTINGS = SchedulerSettings(num_blocks=10, block_size=4, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=30)


def make() -> tuple[SequenceBlocks, SlotColumns]:
    columns = SlotColumns(4, 4)
    return SequenceBlocks(SETTINGS, columns), columns


def running(blocks: SequenceBlocks, columns: SlotColumns, arrival: int, num_tokens: int) -> Request:
    """A sequence with a slot, what the cache has for it, and reserved blocks for the rest."""
    record = EngineRequest(request_id=str(arrival), prompt_token_ids=list(range(num_tokens)), sampling=SamplingParams())
    request = Request.of(
        record,
        arrival=arrival,
        seed=0,
        eos_token_ids=(),
        max_length=30,
        reads_cache=True,
        hasher=blocks.hasher,
    )
    columns.take(request)
    cached = blocks.find_cached(request)
    blocks.admit(request, cached, -(-num_tokens // 4) - len(cached))
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
    assert second.block_ids == [0]  # the second block holds its last known token
    assert (columns.computed[1], columns.capacity[1], second.num_cached_tokens) == (4, 4, 4)
    assert blocks.pool.ref_count(0) == 2
    assert (blocks.num_queried_tokens, blocks.num_hit_tokens) == (16, 4)
    longer = running(blocks, columns, 2, 9)
    assert longer.block_ids == [0, 1]


def test_several_sequences_get_one_more_block_each():
    blocks, columns = make()
    first, second = running(blocks, columns, 0, 4), running(blocks, columns, 1, 6)
    blocks.extend_to(first, 4)
    blocks.extend_to(second, 4)
    assert blocks.append_one_each([first, second], [0, 1]) == [2, 3]
    assert (first.block_ids, second.block_ids) == ([0, 2], [1, 3])
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
    assert running(blocks, columns, 1, 8).block_ids == []
