from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from stoker.engine.runner.kv_cache import KVCache
from stoker.engine.runner.kv_memory import KVMemory
from stoker.engine.runner.state_cache import StateCache
from stoker.model.cache_groups import all_in_one, model_cache_groups
from stoker.model.read import read_config


def test_layers_share_no_memory_and_start_as_zeros():
    cache = KVCache(all_in_one(2), num_blocks=3, block_size=4, tensors=[(2, 8)] * 2, dtype=torch.bfloat16)
    assert cache.num_bytes == 2 * 2 * 3 * 2 * 4 * 8 * 2
    tensors = [tensor for layer in cache.layers for tensor in layer]
    assert [tuple(tensor.shape) for tensor in tensors] == [(3, 2, 4, 8)] * 4
    for number, tensor in enumerate(tensors, start=1):
        assert not tensor.any()
        assert tensor.is_contiguous()
        tensor.fill_(number)
    assert [tensor.unique().tolist() for tensor in tensors] == [[1], [2], [3], [4]]


def test_a_layer_with_latents_keeps_one_tensor():
    cache = KVCache(all_in_one(2), num_blocks=3, block_size=4, tensors=[(1, 24)], dtype=torch.float32)
    assert cache.num_bytes == 2 * 3 * 4 * 24 * 4
    (first,), (second,) = cache.layers
    assert first.shape == second.shape == (3, 1, 4, 24)
    first.fill_(1)
    assert not second.any()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of mapped memory")
def test_the_memory_is_private_so_that_it_can_have_huge_pages():
    cache = KVCache(all_in_one(1), 4, 16, [(1, 16)] * 2, torch.float32)
    address = cache.layers[0][0].data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, permissions, *_ = line.split()
        begin, end = (int(number, 16) for number in place.split("-"))
        if begin <= address < end:
            assert permissions == "rw-p"
            return
    pytest.fail("the cache's memory is not mapped")


def test_memory_of_another_size_is_refused():
    with pytest.raises(ValueError, match="a cache of 8192 bytes over 64 bytes of memory"):
        KVCache(all_in_one(1), 4, 16, [(1, 16)] * 2, torch.float32, KVMemory(64, 2))


def test_a_model_without_attention_has_a_cache_of_no_bytes():
    memory = KVMemory(0, 0)
    memory.touch_first()
    memory.touch_in_background(lambda: True).join(10)
    spec = read_config({"architectures": ["Mamba2ForCausalLM"], "num_hidden_layers": 2})[0]
    states = StateCache(spec, 3, torch.float32)
    cache = KVCache(model_cache_groups(spec, 64, is_hybrid=True), 7, 16, (), torch.float32, memory, states=states)
    assert (cache.num_bytes, cache.num_untouched, memory.num_untouched) == (0, 0, 0)
    assert cache.layers == states.layers


def test_a_place_is_copied_in_every_layer_and_others_keep_their_states():
    config = {"architectures": ["Mamba2ForCausalLM"], "num_hidden_layers": 3, "hidden_size": 32}
    config |= {"num_heads": 4, "head_dim": 16, "n_groups": 1, "state_size": 8}
    spec = read_config(config)[0]
    states = StateCache(spec, 4, torch.float32)
    for layer in states.layers:
        for tensor in layer or ():
            tensor[:] = torch.arange(4.0).view(-1, *[1] * (tensor.ndim - 1))
            assert tensor.is_contiguous()
    states.copy(np.array([[1, 3], [0, 2]], np.int32))
    assert len(states.layers) == 3
    for layer in states.layers:
        assert layer is not None
        for tensor in layer:
            assert tensor.flatten(1).unique(dim=1)[:, 0].tolist() == [0, 1, 0, 1]
