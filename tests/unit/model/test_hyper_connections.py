"""Hyper-connections in config.json, in the tensors of a model, and in what a plan counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.config.plan.distribution import exchange_of
from stoker.model.config_json import ConfigJson, ModelConfigError
from stoker.model.hyper_connections import HyperConnections, Kind, read_hyper_connections
from stoker.model.read import read_config
from stoker.model.sizes import activation_elements
from stoker.model.spec import ModelSpec
from stoker.model.support import support_problem
from stoker.model.tensors import model_shapes

SMALL = {"architectures": ["HYV4ForCausalLM"], "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4}
KEYS = {"hc_mult": 3, "hc_eps": 1e-3, "hc_sinkhorn_iters": 7, "hc_magnitude": 1.5}


def spec_of(**changes: Any) -> ModelSpec:
    return read_config({**SMALL, **changes})[0]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("none", None),
        ("mixed", HyperConnections(num_streams=3, eps=1e-3, iterations=7)),
        ("independent", HyperConnections(num_streams=3, eps=1e-3, output_scale=1.5, output_eps=1e-3)),
    ],
)
def test_each_kind_is_read_from_its_keys(kind: Kind, expected: HyperConnections | None) -> None:
    assert read_hyper_connections(ConfigJson(KEYS), kind) == expected


@pytest.mark.parametrize(("key", "value"), [("hc_mult", 0), ("hc_mult", 17), ("hc_eps", 0), ("hc_magnitude", -1.0)])
def test_numbers_that_no_model_has_are_refused(key: str, value: float) -> None:
    with pytest.raises(ModelConfigError, match=f"`{key}` is {value}"):
        spec_of(**{key: value})


def test_a_connection_has_three_tensors_at_each_block_and_after_the_layers() -> None:
    shapes = model_shapes(spec_of())
    assert shapes["model.layers.2.ffn_hc.fn"] == (8, 256)
    assert shapes["model.layers.0.attn_hc.base"] == (8,)
    assert shapes["model.layers.0.attn_hc.scale"] == (2,)
    assert [shapes[f"model.hc_head.hc_{name}"] for name in ("fn", "base", "scale")] == [(4, 256), (4,), (1,)]
    mixed = HyperConnections(num_streams=4, eps=1e-6, iterations=20)
    shapes = model_shapes(spec_of().model_copy(update={"hyper_connections": mixed}))
    assert shapes["model.layers.0.attn_hc.fn"] == (24, 256)
    assert shapes["model.layers.0.attn_hc.scale"] == (3,)


def test_a_residual_of_several_vectors_is_counted() -> None:
    spec = spec_of()
    plain = spec.model_copy(update={"hyper_connections": None})
    assert (spec.stream_width, plain.stream_width) == (256, 64)
    assert activation_elements(spec)[0] == 2 * 64 + 2 * 256
    assert activation_elements(plain)[0] == 3 * 64
    ask: Any = SimpleNamespace(dtype="bfloat16", tensor_parallel_size=1, pipeline_parallel_size=2)
    assert exchange_of(spec, ask).sent_per_token == 2 * exchange_of(plain, ask).sent_per_token


def test_hunyuan_4_limits_its_experts_and_chooses_tokens_in_every_fourth_layer() -> None:
    spec = spec_of(num_hidden_layers=6)
    assert not support_problem(spec)
    mixers = [layer.mixer for layer in spec.layers]
    assert [mixer.shares_index for mixer in mixers] == [False, False, True, True, True, False]
    assert mixers[0].num_gates == 4 * 256
    assert mixers[0].turns_index_end
    assert spec.layers[1].feed_forward.gate_limit == 10.0
    assert support_problem(spec_of(hidden_act="gelu"))
