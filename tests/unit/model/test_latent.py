from __future__ import annotations

import math
from typing import Any

import pytest
from tests.unit.config.plan.shapes import SHAPES

from stoker.model.config_json import ModelConfigError
from stoker.model.context_parallel import context_parallel_problem
from stoker.model.mixers import LatentAttention
from stoker.model.read import read_config
from stoker.model.sizes import activation_elements, count_parameters
from stoker.model.spec import ModelSpec
from stoker.model.support import support_problem
from stoker.model.tensors import model_shapes

SMALL = {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 64}
SPARSE = {"architectures": ["GlmMoeDsaForCausalLM"], **SMALL}


def spec_of(config: dict[str, Any]) -> ModelSpec:
    return read_config(config)[0]


def mixers(config: dict[str, Any]) -> list[LatentAttention]:
    found = [layer.mixer for layer in spec_of(config).layers]
    assert all(isinstance(mixer, LatentAttention) for mixer in found)
    return found


@pytest.mark.parametrize(
    ("name", "architecture", "width"),
    [
        ("deepseek-v2-lite", "DeepseekV2ForCausalLM", 576),
        ("deepseek-v3", "DeepseekV3ForCausalLM", 576),
        ("kimi-k2", "DeepseekV3ForCausalLM", 576),
        ("glm-4.7-flash", "Glm4MoeLiteForCausalLM", 576),
        ("deepseek-v3.2", "DeepseekV32ForCausalLM", 704),
        ("glm-5", "GlmMoeDsaForCausalLM", 704),
    ],
)
def test_published_models_keep_latents(name: str, architecture: str, width: int) -> None:
    config, published, _ = SHAPES[name]
    spec = spec_of({**config, "architectures": [architecture]})
    assert not support_problem(spec)
    assert count_parameters(spec).total == pytest.approx(published, rel=0.01)
    assert (spec.keeps.kind, spec.keeps.width) == ("latent", width)


def test_yarn_scales_the_products_of_queries_and_keys() -> None:
    rope = {"rope_type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}
    config = {"architectures": ["DeepseekV3ForCausalLM"], **SMALL, "rope_scaling": rope}
    assert mixers(config)[0].scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    del rope["mscale_all_dim"]
    assert mixers(config)[0].scale == pytest.approx(192**-0.5)


def test_routing_of_deepseek_v2_is_a_softmax_without_groups_unless_config_json_names_them() -> None:
    config = {"architectures": ["DeepseekV2ForCausalLM"], **SMALL, "n_group": 8, "topk_group": 3}
    routing = spec_of(config).layers[-1].feed_forward.routing
    assert (routing.scoring, routing.num_groups, routing.has_correction) == ("softmax", 1, False)
    routing = spec_of({**config, "topk_method": "group_limited_greedy"}).layers[-1].feed_forward.routing
    assert (routing.num_groups, routing.groups_per_token) == (8, 3)


@pytest.mark.parametrize(
    ("changes", "shared"),
    [
        ({}, [False] * 4),
        ({"indexer_types": ["full", "shared", "full", "shared"]}, [False, True, False, True]),
        ({"index_topk_pattern": "FSSF"}, [False, True, True, False]),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 1}, [False, True, False, True]),
    ],
)
def test_layers_may_attend_to_the_tokens_of_the_layer_before(changes: dict[str, Any], shared: list[bool]) -> None:
    assert [mixer.shares_index for mixer in mixers({**SPARSE, **changes})] == shared


def test_gates_may_come_with_queries_and_norms_have_gates_before_attention_and_experts() -> None:
    spec = spec_of({"architectures": ["AXK2ForCausalLM"], **SMALL, "gated_norm_rank": 6})
    assert not support_problem(spec)
    assert [layer.norm_gates for layer in spec.layers] == [(6, 0), (6, 6), (6, 6), (6, 6)]
    shapes = model_shapes(spec)
    assert shapes["model.layers.0.self_attn.q_b_proj.weight"] == (4 * (96 + 64), 2 * 384)
    assert shapes["model.layers.1.post_attention_layernorm.W_up.weight"] == (64, 6)
    assert not [name for name in shapes if "layers.0.post_attention_layernorm.W" in name or "g_proj" in name]
    assert activation_elements(spec)[0] == 5 * 64


KINDS = ["indexed_attention", "sliding_attention", "sliding_attention", "full_attention"]
DOTS_3 = {"architectures": ["Dots3NoteForCausalLM"], **SMALL, "num_attention_heads": 4, "hidden_size": 4096}


def test_layers_with_a_window_have_other_sizes_and_all_keep_tokens_of_one_width() -> None:
    spec = spec_of({**DOTS_3, "num_hidden_layers": 6})
    assert not support_problem(spec)
    assert spec.windows == (None, None, 512, 512, 512, None)
    full, local = mixers({**DOTS_3, "num_hidden_layers": 6})[1:3]
    assert (full.num_heads, full.rank, full.plain_dim, full.index_heads) == (4, 512, 128, 64)
    assert (local.num_heads, local.rank, local.plain_dim, local.index_heads) == (64, 1024, 192, 0)
    assert (full.latent_scale, local.latent_scale, local.query_scale) == (8**0.5, 2.0, 2.0)
    assert (full.rope.theta, local.rope.theta) == (8e7, 5e4)
    assert (full.keeps.width, local.keeps.width) == (1088, 1088)
    assert (full.keeps.window, local.keeps.window) == (0, 512)
    shapes = model_shapes(spec)
    assert shapes["model.layers.0.self_attn.k_rope_only_layernorm.weight"] == (64,)
    assert shapes["model.layers.2.self_attn.kv_a_proj_with_mqa.weight"] == (1088, 4096)
    assert spec.without_windows().windows == (None,) * 6
    assert "window" in (context_parallel_problem(spec_of({**DOTS_3, "use_dsa": False}), 2, 2) or "")


def test_sizes_of_layers_with_a_window_may_be_listed_by_layer() -> None:
    """As transformers writes them; with `use_dsa` in old files, layers without a window have an index or none."""
    listed = {"kv_lora_rank": 256, "head_dim": 128, "qk_nope_head_dim": 64, "num_key_value_heads": 4}
    ropes = {kind: {"rope_theta": theta} for kind, theta in (("indexed_attention", 2e6), ("sliding_attention", 3e4))}
    config = {**DOTS_3, "layer_types": KINDS, "per_layer_config": {"1": listed, "2": listed}, "rope_parameters": ropes}
    found = mixers({**config, "sliding_window": 9})
    assert [mixer.rank for mixer in found] == [512, 256, 256, 512]
    assert [mixer.rope.theta for mixer in found] == [2e6, 3e4, 3e4, 2e6]
    assert [mixer.index_heads for mixer in found] == [64, 0, 0, 0]
    assert [mixer.window for mixer in found] == [None, 9, 9, None]
    assert [mixer.index_heads for mixer in mixers({**DOTS_3, "layer_types": KINDS})] == [64, 0, 0, 64]
    assert [mixer.index_heads for mixer in mixers({**DOTS_3, "use_dsa": False, "layer_types": KINDS})] == [0] * 4
    assert [mixer.window for mixer in mixers({**DOTS_3, "use_sliding_window": False})] == [None] * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_layer_config": {"1": {"v_head_dim": 64}}}, "`per_layer_config` is supported for .* with a window"),
        ({"per_layer_config": {"1": {"index_topk": 4}, "2": {"index_topk": 4}}}, "`per_layer_config` is supported for"),
        ({"layer_types": ["chunked_attention"] * 4}, "`layer_types` has 'chunked_attention'"),
        ({"q_lora_rank": None, "use_dsa": False}, "`q_lora_rank` is missing"),
        ({"swa_num_key_value_heads": 2}, "`num_key_value_heads` must be 64"),
        ({"swa_qk_nope_head_dim": 256}, "`qk_rope_head_dim` is 0"),
        ({"partial_rotary_factor": 0.5}, "`partial_rotary_factor` must be 1"),
    ],
)
def test_sizes_of_layers_with_a_window_that_contradict_others_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelConfigError, match=message):
        spec_of({**DOTS_3, "layer_types": KINDS, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 2}, "`num_key_value_heads` must be 4"),
        ({"qk_rope_head_dim": 7}, "`qk_rope_head_dim` is 7"),
        ({"partial_rotary_factor": 0.5}, "`partial_rotary_factor` must be 1"),
        ({"mlp_layer_types": ["dense"]}, "`mlp_layer_types` must say"),
        ({"indexer_types": ["shared"] * 4}, "the first layer must have an index"),
        ({"indexer_types": "FSX"}, "`indexer_types` must say"),
        ({"indexer_types": [{}] * 4}, "`indexer_types` must say"),
        ({"index_head_dim": 8}, "`index_head_dim` is 8"),
        ({"q_lora_rank": None}, "sparse attention needs"),
        ({"architectures": ["AXK2ForCausalLM"], "q_lora_rank": None}, "gates that come with the queries need"),
        ({"architectures": ["DeepseekV2ForCausalLM"], "topk_method": "best"}, "`topk_method` is 'best'"),
        ({"architectures": ["DeepseekV2ForCausalLM"], "norm_topk_prob": True}, "`norm_topk_prob` is true"),
    ],
)
def test_what_contradicts_itself_or_is_not_computed_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        spec_of({**SPARSE, **changes})
