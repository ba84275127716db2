"""Families with Mamba-2 layers, as config.json describes them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.config.plan.shapes import NATIVE

from stoker.model.config_json import ModelConfigError
from stoker.model.feed_forwards import Experts
from stoker.model.mixers import Attention, Mamba2
from stoker.model.read import read_config
from stoker.model.spec import ModelSpec
from stoker.model.tensors import model_shapes

NEMOTRON = {"architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": "ME*-"}
FALCON = {"architectures": ["FalconH1ForCausalLM"], "num_hidden_layers": 1}
BAMBA = {"architectures": ["BambaForCausalLM"], "num_hidden_layers": 3, "attn_layer_indices": [1]}


def spec_of(config: dict[str, Any], **changes: Any) -> ModelSpec:
    return read_config({**config, **changes})[0]


def mamba_of(spec: ModelSpec) -> Mamba2:
    return next(mixer for layer in spec.layers for mixer in layer.mixers if isinstance(mixer, Mamba2))


def test_a_layer_of_nemotron_has_one_part_and_one_norm() -> None:
    spec = spec_of(NEMOTRON)
    kinds = [
        "none" if layer.mixer is None else layer.mixer.kind
        for layer in spec.layers
        if (layer.mixer is None) is not (layer.feed_forward is None)
    ]
    assert kinds == ["mamba2", "none", "attention", "none"]
    assert isinstance(spec.layers[1].feed_forward, Experts)
    norms = [name for name in model_shapes(spec) if "layernorm" in name]
    assert norms == [f"model.layers.{index}.input_layernorm.weight" for index in range(4)]
    names = ["linear_attention", "moe", "full_attention", "mlp"]
    assert spec_of({**NEMOTRON, "hybrid_override_pattern": "M"}, layers_block_type=names) == spec


def test_attention_and_state_of_falcon_are_side_by_side() -> None:
    layer = spec_of(FALCON).layers[0]
    assert isinstance(layer.mixer, Attention)
    assert isinstance(layer.beside, Mamba2)
    assert (layer.has_keys, layer.state is not None, layer.feed_forward is not None) == (True, True, True)


def test_multipliers_are_factors_of_rows() -> None:
    """Those of inputs do not change a bias."""
    changes = {"attention_bias": True, "key_multiplier": 0.5, "attention_in_multiplier": 4.0}
    scales = {scale.name: scale.parts for scale in spec_of(FALCON, **changes).weight_scales}
    assert scales["self_attn.k_proj.weight"] == ((1024, 2.0),)
    assert scales["self_attn.k_proj.bias"] == ((1024, 0.5),)
    assert scales["self_attn.q_proj.weight"] == ((4096, 4.0),)
    assert "self_attn.q_proj.bias" not in scales
    ssm = spec_of(FALCON, ssm_multipliers=[1, 2, 3, 4, 5], ssm_in_multiplier=10).weight_scales
    assert ssm[0].parts == ((1024, 10.0), (1024, 20.0), (256, 30.0), (256, 40.0), (128, 50.0))
    assert spec_of(FALCON).weight_scales == ()


def test_a_dense_granite_has_the_shared_block_alone() -> None:
    config, _ = NATIVE["granite-4.0-h-tiny"]
    spec = spec_of(config, num_local_experts=0)
    assert not spec.has_experts
    assert model_shapes(spec)["model.layers.0.mlp.down_proj.weight"] == (1536, 1024)
    attention = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, Attention)]
    assert [mixer.rope for mixer in attention] == [None] * 4
    assert spec_of(config, position_embedding_type="rope").attention is not None
    turned = spec_of(config, position_embedding_type="rope").attention
    assert turned is not None
    assert turned.rope is not None


@pytest.mark.parametrize(
    ("written", "limits"),
    [
        (None, (0.0, None)),
        ([0.0, float("inf")], (0.0, None)),
        ([0.001, {"__float__": "Infinity"}], (0.001, None)),
        ([0.1, 2], (0.1, 2.0)),
    ],
)
def test_time_steps_are_limited(written: Any, limits: tuple[float, float | None]) -> None:
    mixer = mamba_of(spec_of(BAMBA, time_step_limit=written))
    assert (mixer.min_step, mixer.max_step) == limits


def test_the_time_steps_of_nemotron_have_only_a_least() -> None:
    mixer = mamba_of(spec_of(NEMOTRON, time_step_min=0.01, time_step_limit=[0.5, 1.0]))
    assert (mixer.min_step, mixer.max_step) == (0.01, None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (NEMOTRON | {"hybrid_override_pattern": "MX"}, "`hybrid_override_pattern` is 'MX'; it must be a text of"),
        (NEMOTRON | {"hybrid_override_pattern": ""}, "must be a list of 1 to 4096 layers"),
        (NEMOTRON | {"layers_block_type": ["mamba", 3]}, "`layers_block_type` has 3; known: attention"),
        (NEMOTRON | {"moe_latent_size": 64}, "`moe_latent_size`"),
        (NEMOTRON | {"mamba_hidden_act": "gelu"}, "`mamba_hidden_act` is 'gelu'; Mamba-2 layers need silu"),
        (NEMOTRON | {"n_groups": 7}, "128 heads cannot share 7 groups evenly"),
        (BAMBA | {"attn_layer_indices": 3}, "`attn_layer_indices` must be a list of layers"),
        (BAMBA | {"mamba_d_head": 32}, "128 heads of 32 channels are not the 8192 channels of a state"),
        (BAMBA | {"mamba_d_conv": 1}, "`mamba_d_conv` is 1; it must be a number of tokens from 2 to 64"),
        (BAMBA | {"time_step_limit": [2.0, 1.0]}, "it must be a list of two ascending numbers"),
        (BAMBA | {"time_step_limit": ["0", 1.0]}, "it must be a list of two ascending numbers"),
        (BAMBA | {"time_step_limit": 3}, "it must be a list of two numbers"),
        (FALCON | {"ssm_multipliers": [1, 2]}, "`ssm_multipliers` is [1, 2]; it must be a list of 5 numbers"),
        (FALCON | {"mlp_multipliers": [1, 0]}, "`mlp_multipliers` is 0; it must be a number above 0"),
    ],
)
def test_what_contradicts_itself_or_is_unknown_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError) as found:
        read_config(config)
    assert message in str(found.value)
