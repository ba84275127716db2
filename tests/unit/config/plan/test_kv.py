from __future__ import annotations

import pytest

from stoker.config.memory.kv_cost import kv_cost_of_groups
from stoker.config.plan.kv import by_kind, kv_cost
from stoker.model.cache_groups import cache_groups
from stoker.model.guess import guess
from stoker.model.read import read_config
from stoker.model.sizes import state_bytes
from stoker.model.tensor_parallel import of_one_device

from .shapes import SHAPES


@pytest.mark.parametrize("name", SHAPES)
def test_every_kind_of_layer_has_its_price(name: str) -> None:
    config, _, (per_token, windows, per_sequence) = SHAPES[name]
    cost = kv_cost(read_config(config)[0], "bfloat16", 16)
    assert (cost.token_bytes, cost.windows, cost.sequence_bytes) == (per_token, windows, per_sequence)


@pytest.mark.parametrize("name", SHAPES)
def test_the_states_of_a_sequence_are_those_that_the_engine_keeps(name: str) -> None:
    spec = read_config(SHAPES[name][0])[0]
    assert kv_cost(spec, "bfloat16", 16).sequence_bytes == state_bytes(spec, "bfloat16")


def test_a_window_bounds_what_a_layer_keeps() -> None:
    spec = guess(SHAPES["gemma-3-1b"][0])
    cost = kv_cost(spec, "bfloat16", 16)
    assert cost.of(512) == 512 * (4096 + 22528)
    assert cost.of(32768) == 32768 * 4096 + 512 * 22528
    groups = cache_groups(spec.windows)
    ours = kv_cost_of_groups(groups, spec.keeps, "bfloat16", 16, step_tokens=2048)
    one_group, num_windows = groups.num_planes * spec.layers[0].mixer.keeps.width * 2, groups.num_groups - 1
    assert ours.to_admit(32768) == one_group * (32768 + num_windows * 16 * (-(-(512 + 2 * 2048) // 16) + 2))
    whole = 32768 * one_group * groups.num_groups
    assert ours.num_sequences(20 * whole, 32768) >= 5 * 20
    assert ours.num_sequences(whole, 32768) >= 4


def test_latents_of_layers_with_a_window_are_bounded_too() -> None:
    """13 layers of Dots 3 keep all tokens, 33 those of a window."""
    spec = read_config({"architectures": ["Dots3NoteForCausalLM"]})[0]
    cost = kv_cost(spec, "bfloat16", 16)
    assert (cost.token_bytes, cost.windows) == (13 * 1088 * 2, ((512, 33 * 1088 * 2),))
    assert set(by_kind(spec, "bfloat16", "float32")) == {("latent", 13, 2176, 0), ("latent", 33, 2176, 512)}


def test_devices_that_share_tokens_keep_a_part_of_each_block() -> None:
    spec = read_config(SHAPES["deepseek-v3"][0])[0]
    whole, part = kv_cost(spec, "bfloat16", 16), kv_cost(spec, "bfloat16", 16, num_parts=8)
    assert part.block_bytes == whole.block_bytes // 8
    assert part.num_sequences(1 << 34, 32768) >= 8 * whole.num_sequences(1 << 34, 32768)
    assert part.longest(1 << 30, 1 << 20) // 16 >= 8 * (whole.longest(1 << 30, 1 << 20) // 16)


def test_the_longest_sequence_is_the_last_that_fits() -> None:
    cost = kv_cost(guess(SHAPES["gemma-3-1b"][0]), "bfloat16", 16)
    longest = cost.longest(64 << 20, 32768)
    assert cost.of(longest) <= 64 << 20 < cost.of(longest + 16)
    assert cost.longest(1 << 40, 32768) == 32768
    assert cost.longest(0, 32768) == 0


def test_key_value_heads_are_shared_out_over_devices_but_never_cut() -> None:
    eight = guess(SHAPES["llama-3.1-8b"][0])
    assert kv_cost(of_one_device(eight, 4), "bfloat16", 16).token_bytes == 131072 // 4
    assert kv_cost(of_one_device(eight, 16), "bfloat16", 16).token_bytes == 131072 // 8
    latent = guess(SHAPES["deepseek-v3"][0])
    assert kv_cost(of_one_device(latent, 8), "bfloat16", 16).token_bytes == 70272
