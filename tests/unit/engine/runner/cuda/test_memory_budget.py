from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

from stoker.config import Layer, Origin
from stoker.config.memory.gpu_reserve import staging_bytes
from stoker.engine.kernels.gpu.sample import sampling_workspace
from stoker.engine.runner.cuda.memory_budget import GRAPHS_BYTES, DeviceMemory, blocks_that_fit
from stoker.engine.runner.cuda.slot_arena import arena_bytes

GIB = 1 << 30
BLOCK_BYTES = 64 * 1024
TABLES = arena_bytes(8, 640, 64, 1000) + sum(each.nbytes for each in sampling_workspace(8, 1000, "cpu"))
STEP = GIB // 4
WITH_GRAPHS = STEP + GRAPHS_BYTES


def deployment(
    blocks: int,
    *,
    is_open: bool = True,
    utilization: float = 0.9,
    sizes: tuple[int, ...] = (1, 8),
    token_bytes: int = 1024,
    stores_blocks: bool = False,
) -> Any:
    layer = Layer.RULE if is_open else Layer.FILE
    return SimpleNamespace(
        scheduler=SimpleNamespace(max_num_seqs=8, cuda_graph_sizes=sizes, max_num_batched_tokens=100),
        cache=SimpleNamespace(block_size=64, gpu_memory_utilization=utilization, num_gpu_blocks_override=None),
        model=SimpleNamespace(max_model_len=640),
        model_spec=SimpleNamespace(vocab_size=1000, has_states=token_bytes == 0),
        memory=SimpleNamespace(kv_block_bytes=64 * token_bytes),
        cache_groups=SimpleNamespace(num_groups=1),
        num_kv_blocks=blocks,
        stores_blocks=stores_blocks,
        origin=lambda path: Origin(layer=layer),
    )


def memory(free: int, total: int = 10 * GIB, allocated: int = 2 * GIB, step: int = STEP) -> DeviceMemory:
    return DeviceMemory(total, free, allocated, step)


def test_the_planned_number_of_blocks_is_used_if_it_fits():
    assert blocks_that_fit(deployment(1000), memory(free=8 * GIB)) == 1000


def test_an_open_cache_takes_what_the_share_leaves(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    budget = 9 * GIB - 2 * GIB - STEP - TABLES - WITH_GRAPHS
    assert blocks_that_fit(deployment(10**6), memory(free=8 * GIB)) == budget // BLOCK_BYTES
    assert "not the planned 1000000" in caplog.text


def test_blocks_on_their_way_to_a_store_have_memory_of_their_own():
    storing = deployment(10**6, stores_blocks=True)
    without = blocks_that_fit(deployment(10**6), memory(free=8 * GIB))
    assert without - blocks_that_fit(storing, memory(free=8 * GIB)) == -(-staging_bytes(BLOCK_BYTES) // BLOCK_BYTES)


def test_other_programs_memory_is_not_counted_with():
    budget = 5 * GIB - STEP - TABLES - WITH_GRAPHS
    assert blocks_that_fit(deployment(10**6), memory(free=5 * GIB)) == budget // BLOCK_BYTES
    without_graphs = deployment(10**6, sizes=())
    assert blocks_that_fit(without_graphs, memory(free=5 * GIB)) == (budget + WITH_GRAPHS) // BLOCK_BYTES


def test_a_demanded_size_is_kept_or_refused():
    blocks = (8 * GIB - STEP - TABLES - WITH_GRAPHS) // BLOCK_BYTES  # more than the share would leave
    assert blocks_that_fit(deployment(blocks, is_open=False), memory(free=8 * GIB)) == blocks
    with pytest.raises(
        MemoryError, match=r"the number of blocks that the deployment sets.*lower `model.max_model_len`"
    ):
        blocks_that_fit(deployment(blocks + 1, is_open=False), memory(free=8 * GIB))


def test_less_than_one_sequence_is_an_error_that_says_what_to_change():
    least = STEP + TABLES + WITH_GRAPHS + 10 * BLOCK_BYTES
    assert blocks_that_fit(deployment(1000), memory(free=least)) == 10
    with pytest.raises(MemoryError, match=r"one sequence of 640 tokens.*`cache.gpu_memory_utilization`"):
        blocks_that_fit(deployment(1000), memory(free=least - 1))


def test_blocks_without_bytes_need_no_memory_and_a_step_does():
    """Of a model that has only states: the number of blocks was divided by their bytes."""
    states_only = deployment(1000, token_bytes=0)
    least = STEP + TABLES + WITH_GRAPHS
    assert blocks_that_fit(states_only, memory(free=least)) == 1000
    with pytest.raises(MemoryError, match=r"a step does not fit: .* free after the weights and states"):
        blocks_that_fit(states_only, memory(free=least - 1))
