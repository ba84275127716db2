from __future__ import annotations

import pytest

from stoker.config.cache_groups import cache_groups
from stoker.config.plan.kv import kv_cost, kv_cost_of_groups
from stoker.config.plan.parameters import count_parameters
from stoker.config.plan.shape import read_shape

from .shapes import SHAPES


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_counted_within_a_thousandth_of_what_is_published(name: str) -> None:
    config, published, _ = SHAPES[name]
    assert count_parameters(read_shape(config)).total == pytest.approx(published, rel=1e-3)


@pytest.mark.parametrize("name", SHAPES)
def test_every_kind_of_layer_has_its_price(name: str) -> None:
    config, _, (per_token, windows, per_sequence) = SHAPES[name]
    cost = kv_cost(read_shape(config), "bfloat16", 16)
    assert (cost.token_bytes, cost.windows, cost.sequence_bytes) == (per_token, windows, per_sequence)


def test_only_the_experts_that_run_count_for_a_token() -> None:
    count = count_parameters(read_shape(SHAPES["qwen3-30b-a3b"][0]))
    assert count.active == pytest.approx(3.04e9, rel=0.01)


def test_a_window_bounds_what_a_layer_keeps() -> None:
    shape = read_shape(SHAPES["gemma-3-1b"][0])
    cost = kv_cost(shape, "bfloat16", 16)
    assert cost.of(512) == 512 * (4096 + 22528)
    assert cost.of(32768) == 32768 * 4096 + 512 * 22528
    groups = cache_groups([None if layer.kind == "full" else layer.window for layer in shape.layers])
    ours = kv_cost_of_groups(groups, shape, "bfloat16", 16)
    assert (
        ours.to_admit(32768)
        == 32768 * groups.num_planes * groups.num_groups * 2 * shape.num_kv_heads * shape.head_dim * 2
    )
    assert ours.num_sequences(20 * ours.to_admit(32768), 32768) >= 4 * 20


def test_the_longest_sequence_is_the_last_that_fits() -> None:
    cost = kv_cost(read_shape(SHAPES["gemma-3-1b"][0]), "bfloat16", 16)
    longest = cost.longest(64 << 20, 32768)
    assert cost.of(longest) <= 64 << 20 < cost.of(longest + 16)
    assert cost.longest(1 << 40, 32768) == 32768
    assert cost.longest(0, 32768) == 0


def test_key_value_heads_are_shared_out_over_devices_but_never_cut() -> None:
    eight = read_shape(SHAPES["llama-3.1-8b"][0])
    assert kv_cost(eight, "bfloat16", 16, tensor_parallel_size=4).token_bytes == 131072 // 4
    assert kv_cost(eight, "bfloat16", 16, tensor_parallel_size=16).token_bytes == 131072 // 8
    latent = read_shape(SHAPES["deepseek-v3"][0])
    assert kv_cost(latent, "bfloat16", 16, tensor_parallel_size=8).token_bytes == 70272


@pytest.mark.parametrize(
    ("config", "assumed"),
    [
        ({"model_type": "new", "hidden_size": 64, "num_hidden_layers": 2}, "names no longest context"),
        (
            {"text_config": {"model_type": "new", "hidden_size": 64, "num_hidden_layers": 2}, "vision_config": {}},
            "only the language part was counted",
        ),
        (
            {"model_type": "new", "hidden_size": 64, "num_hidden_layers": 2, "sliding_window": 32},
            "not which layers use it",
        ),
        (
            {"model_type": "elm", "hidden_size": 64, "num_hidden_layers": 2, "num_key_value_heads": [1, 2]},
            "`num_key_value_heads` differs by layer",
        ),
    ],
)
def test_what_had_to_be_assumed_is_said(config: dict[str, object], assumed: str) -> None:
    shape = read_shape(config)
    assert shape.num_layers == 2
    assert any(assumed in assumption for assumption in shape.assumptions)


@pytest.mark.parametrize(
    ("written", "method", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq", 4),
        ({"quant_method": "awq", "bits": 4}, "awq", 4),
        ({"quant_method": "fp8"}, "fp8", 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", 4),
        ({"quant_method": "mxfp4"}, "mxfp4", 4),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}},
            "compressed-tensors",
            8,
        ),
    ],
)
def test_quantised_checkpoints_are_known_by_their_method(written: dict[str, object], method: str, bits: int) -> None:
    shape = read_shape({**SHAPES["llama-3.1-8b"][0], "quantization_config": written})
    assert (shape.quantization, shape.quantization_bits) == (method, bits)
