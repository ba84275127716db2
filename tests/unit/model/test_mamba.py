"""Families with Mamba layers, as config.json describes them."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.config_json import ModelConfigError
from stoker.model.feed_forwards import MLP, Experts
from stoker.model.mixers import Attention, Mamba
from stoker.model.read import read_config
from stoker.model.sizes import state_bytes
from stoker.model.spec import ModelSpec
from stoker.model.support import support_problem
from stoker.model.tensor_parallel import of_one_device, slices, tensor_parallel_problem
from stoker.model.tensors import model_shapes

MAMBA = {"architectures": ["MambaForCausalLM"], "num_hidden_layers": 1}
FALCON = {"architectures": ["FalconMambaForCausalLM"], "num_hidden_layers": 1}
JAMBA = {"architectures": ["JambaForCausalLM"]}
LAYER = "model.layers.0.mamba"


def spec_of(config: dict[str, Any], **changes: Any) -> ModelSpec:
    spec = read_config({**config, **changes})[0]
    assert not support_problem(spec)
    return spec


def mamba_of(spec: ModelSpec) -> Mamba:
    return next(mixer for layer in spec.layers for mixer in layer.mixers if isinstance(mixer, Mamba))


@pytest.mark.parametrize(
    ("changes", "width", "rank"),
    [
        ({"hidden_size": 1000}, 2000, 63),
        ({"hidden_size": 1000, "expand": 4, "time_step_rank": 7}, 4000, 7),
        ({"hidden_size": 4096, "expand": 16, "intermediate_size": 8192, "time_step_rank": "auto"}, 8192, 256),
    ],
)
def test_the_width_and_the_rank_of_the_time_steps(changes: dict[str, Any], width: int, rank: int) -> None:
    """A written width is that of the tensors, whatever `expand` says: files of Falcon Mamba contradict themselves."""
    for config in (MAMBA, FALCON):
        mixer = mamba_of(spec_of(config, **changes))
        assert (mixer.width, mixer.step_rank) == (width, rank)


def test_only_jamba_has_weights_of_norms() -> None:
    names = {name.rpartition(".")[0] for name in model_shapes(spec_of(MAMBA))}
    assert names == {name.rpartition(".")[0] for name in model_shapes(spec_of(FALCON))}
    shapes = model_shapes(spec_of(JAMBA))
    assert shapes[f"{LAYER}.dt_layernorm.weight"] == (256,)
    assert shapes[f"{LAYER}.b_layernorm.weight"] == shapes[f"{LAYER}.c_layernorm.weight"] == (16,)
    assert not [name for name in names if "layernorm" in name and "mamba" in name]
    norms = [(mamba_of(spec_of(config)).norm, mamba_of(spec_of(config)).norm_eps) for config in (MAMBA, FALCON, JAMBA)]
    assert norms == [("none", 1e-6), ("bare", 1e-6), ("weighted", 1e-6)]
    assert mamba_of(spec_of(FALCON, mixer_rms_eps=1e-3)).norm_eps == 1e-3


def test_layers_of_jamba() -> None:
    """Attention without positions in every eighth layer, experts in every second, none of them with a shared one."""
    spec = spec_of(JAMBA)
    attention = [index for index, layer in enumerate(spec.layers) if isinstance(layer.mixer, Attention)]
    assert attention == [4, 12, 20, 28]
    assert [layer.mixer.rope for layer in spec.layers if isinstance(layer.mixer, Attention)] == [None] * 4
    experts = [layer.feed_forward for layer in spec.layers[1::2]]
    assert all(isinstance(block, Experts) and not block.shared_width for block in experts)
    assert all(isinstance(layer.feed_forward, MLP) for layer in spec.layers[::2])
    changed = spec_of(JAMBA, attn_layer_period=3, attn_layer_offset=0, expert_layer_period=4, num_hidden_layers=7)
    assert [layer.has_keys for layer in changed.layers] == [index % 3 == 0 for index in range(7)]
    assert [isinstance(layer.feed_forward, Experts) for layer in changed.layers] == [i % 4 == 1 for i in range(7)]
    assert not spec_of(JAMBA, num_experts=1).has_experts


def test_a_state_has_elements_for_each_channel() -> None:
    spec = spec_of(FALCON, num_hidden_layers=64, hidden_size=4096)
    assert state_bytes(spec, "bfloat16") == 64 * 8192 * (16 * 4 + 3 * 2)
    assert state_bytes(spec, "bfloat16", "bfloat16") == 64 * 8192 * (16 + 3) * 2


def test_channels_are_divided_and_the_shared_parts_are_whole() -> None:
    """Inputs and gates are divided each by themselves; compressed time steps, B and C are sums over all devices."""
    spec = spec_of(JAMBA)
    shapes = model_shapes(of_one_device(spec, 4))
    assert shapes[f"{LAYER}.in_proj.weight"] == (2 * 2048, 4096)
    assert shapes[f"{LAYER}.x_proj.weight"] == (256 + 32, 2048)
    assert shapes[f"{LAYER}.dt_proj.weight"] == (2048, 256)
    assert shapes[f"{LAYER}.A_log"] == (2048, 16)
    assert shapes[f"{LAYER}.dt_layernorm.weight"] == (256,)
    own = slices(spec, 4, 1)
    assert own[f"{LAYER}.in_proj.weight"].ranges == (range(2048, 4096), range(8192 + 2048, 8192 + 4096))
    assert own[f"{LAYER}.x_proj.weight"].dim == 1
    reason = "8191 channels of a recurrent layer cannot be divided by 2"
    assert tensor_parallel_problem(spec_of(FALCON, intermediate_size=8191), 2) == reason


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MAMBA | {"hidden_act": "gelu"}, "`hidden_act` is 'gelu'; Mamba layers need silu"),
        (MAMBA | {"conv_kernel": 1}, "`conv_kernel` is 1; it must be a number of tokens from 2 to 64"),
        (MAMBA | {"time_step_rank": 0}, "`time_step_rank` is 0"),
        (FALCON | {"mixer_rms_eps": 0}, "`mixer_rms_eps` is 0; it must be a number above 0"),
        (JAMBA | {"attn_layer_offset": 8}, "`attn_layer_offset` is 8; it must be a number of layers below 8"),
        (JAMBA | {"expert_layer_offset": None}, "`expert_layer_offset` is None; it must be a number of layers below 2"),
    ],
)
def test_what_contradicts_itself_or_is_unknown_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError) as found:
        read_config(config)
    assert message in str(found.value)
