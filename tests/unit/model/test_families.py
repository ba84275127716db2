"""Published models: numbers of parameters, and names of tensors that transformers would not write today."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.config.plan.shapes import NATIVE

from stoker.config.checkpoint.match import tensors_of
from stoker.config.checkpoint.stored import StoredTensor
from stoker.model.config_json import ModelConfigError
from stoker.model.mixers import Attention
from stoker.model.pipeline_stages import pipeline_problem
from stoker.model.read import read_config
from stoker.model.sizes import count_parameters
from stoker.model.support import support_problem
from stoker.model.tensor_parallel import tensor_parallel_problem
from stoker.model.tensors import model_shapes

V, P, H, F = 5, 4, 8, 32  # vocabulary, positions, width, inner width
_HEADS = {"num_attention_heads": 2, "num_hidden_layers": 1, "hidden_size": H, "vocab_size": V}
_FUSED = {"query_key_value.weight": (3 * H, H), "query_key_value.bias": (3 * H,), "dense.weight": (H, H)}
_MLP = {
    "mlp.dense_h_to_4h.weight": (F, H),
    "mlp.dense_h_to_4h.bias": (F,),
    "mlp.dense_4h_to_h.weight": (H, F),
    "mlp.dense_4h_to_h.bias": (H,),
}


def _at(place: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {f"{place}{name}": shape for part in parts for name, shape in part.items()}


def _norms(*names: str) -> dict[str, Any]:
    return {f"{name}.{kind}": (H,) for name in names for kind in ("weight", "bias")}


def _attention(place: str) -> dict[str, Any]:
    return _at(f"{place}.", _FUSED, {"dense.bias": (H,)})


OLD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # config.json, and the tensors of the files
    "GPT2LMHeadModel": (
        {"n_embd": H, "n_head": 2, "n_layer": 1, "n_positions": P, "vocab_size": V},
        _at("", {"wte.weight": (V, H), "wpe.weight": (P, H)}, _norms("ln_f", "h.0.ln_1", "h.0.ln_2"))
        | _at("h.0.attn.", {"bias": (1, 1, P, P), "c_attn.weight": (H, 3 * H), "c_attn.bias": (3 * H,)})
        | _at("h.0.attn.", {"c_proj.weight": (H, H), "c_proj.bias": (H,)})
        | _at("h.0.mlp.", {"c_fc.weight": (H, F), "c_fc.bias": (F,), "c_proj.weight": (F, H), "c_proj.bias": (H,)}),
    ),
    "BloomForCausalLM": (
        {"n_embed": H, "n_head": 2, "n_layer": 1, "vocab_size": V, "seq_length": P},
        _at("", {"word_embeddings.weight": (V, H)}, _norms("word_embeddings_layernorm", "ln_f"))
        | _at("h.0.", _norms("input_layernorm", "post_attention_layernorm"), _attention("self_attention"), _MLP),
    ),
    "GPTNeoXForCausalLM": (
        {**_HEADS, "intermediate_size": F, "rotary_pct": 0.5, "rotary_emb_base": 5000},
        {"gpt_neox.embed_in.weight": (V, H), "embed_out.weight": (V, H), **_norms("gpt_neox.final_layer_norm")}
        | _at("gpt_neox.layers.0.", _norms("input_layernorm", "post_attention_layernorm"), _attention("attention"))
        | _at("gpt_neox.layers.0.", _MLP, {"attention.bias": (1, 1, P, P), "attention.masked_bias": ()})
        | {"gpt_neox.layers.0.attention.rotary_emb.inv_freq": (1,)},
    ),
    "OPTForCausalLM": (
        {**_HEADS, "ffn_dim": F, "max_position_embeddings": P},
        {"decoder.embed_tokens.weight": (V, H), "decoder.embed_positions.weight": (P + 2, H)}
        | _at("decoder.", _norms("final_layer_norm", "layers.0.self_attn_layer_norm", "layers.0.final_layer_norm"))
        | {
            f"decoder.layers.0.self_attn.{name}.{kind}": (H, H) if kind == "weight" else (H,)
            for name in ("q_proj", "k_proj", "v_proj", "out_proj")
            for kind in ("weight", "bias")
        }
        | _at("decoder.layers.0.", {"fc1.weight": (F, H), "fc1.bias": (F,), "fc2.weight": (H, F), "fc2.bias": (H,)}),
    ),
}


@pytest.mark.parametrize("name", NATIVE)
def test_a_published_model_has_its_number_of_parameters(name: str) -> None:
    config, published = NATIVE[name]
    spec, _ = read_config(config)
    assert support_problem(spec) == ""
    assert count_parameters(spec).total == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("architecture", OLD)
def test_old_names_and_layouts_of_tensors_are_known(architecture: str) -> None:
    config, files = OLD[architecture]
    spec, _ = read_config({"architectures": [architecture], **config})
    stored = {name: StoredTensor(Path("m"), "F16", shape, 0) for name, shape in files.items()}
    assert tensors_of(Path("m"), stored, spec).keys() == model_shapes(spec).keys()


def test_keys_with_names_of_their_own_are_read_and_named_in_errors() -> None:
    config = {"architectures": ["GPTNeoXForCausalLM"], **OLD["GPTNeoXForCausalLM"][0]}
    spec, _ = read_config(config)
    assert spec.attention is not None
    assert spec.attention.rope is not None
    assert (spec.attention.rope.theta, spec.attention.rope.partial_rotary_factor) == (5000, 0.5)
    with pytest.raises(ValueError, match="`n_embd` is 'x'"):
        read_config({"architectures": ["GPT2LMHeadModel"], "n_embd": "x"})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"word_embed_proj_dim": 512}, "`word_embed_proj_dim` is 512; supported: 768"),
        ({"do_layer_norm_before": False}, "`do_layer_norm_before` is False; supported: True"),
    ],
)
def test_a_setting_that_is_not_computed_is_a_reason(changes: dict[str, Any], reason: str) -> None:
    spec, _ = read_config({"architectures": ["OPTForCausalLM"], "word_embed_proj_dim": 768, **changes})
    assert support_problem(spec) == reason


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("HyperCLOVAXForCausalLM", {"use_post_norm": False}),
        ("HyperCLOVAXForCausalLM", {"residual_multiplier": 0.5}),
        ("MiniCPM3ForCausalLM", {"rope_interleave": True}),
        ("Qwen3VLMoeForConditionalGeneration", {"norm_topk_prob": False}),
        ("SolarOpenForCausalLM", {"first_k_dense_replace": 1}),
        ("MptForCausalLM", {"attn_config.clip_qkv": 6}),
        ("MptForCausalLM", {"attn_config.alibi": False}),
        ("Zamba2ForCausalLM", {"use_long_context": True}),
        ("PhimoeForCausalLM", {"num_experts_per_tok": 3}),
    ],
)
def test_a_value_that_transformers_does_not_compute_so_is_named(architecture: str, changes: dict[str, Any]) -> None:
    assert support_problem(read_config({"architectures": [architecture]})[0]) == ""
    ((key, value),) = changes.items()
    name, _, inner = key.partition(".")
    reason = support_problem(
        read_config({"architectures": [architecture], name: {inner: value} if inner else value})[0]
    )
    assert reason.startswith(f"`{key}` is ")


def test_each_layer_may_have_a_base_of_its_own() -> None:
    config = {"architectures": ["GraniteSWAForCausalLM"], "num_hidden_layers": 3}
    spec, _ = read_config({**config, "layer_rope_theta": [0, 5e3, 1e4]})
    mixers = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, Attention)]
    assert [mixer.rope and mixer.rope.theta for mixer in mixers] == [None, 5e3, 1e4]
    assert spec.windows == (None, 128, 128)
    with pytest.raises(ModelConfigError, match="`layer_rope_theta` must be a list of 3 numbers"):
        read_config({**config, "layer_rope_theta": [0, 1e4]})


@pytest.mark.parametrize("types", [None, 3, [["global"]], [[["global", "local"], 2]], [[["global", "far"], 1]]])
def test_local_layers_are_those_of_attention_types(types: Any) -> None:
    config = {"architectures": ["GPTNeoForCausalLM"], "num_layers": 2, "window_size": 9}
    assert read_config({**config, "attention_types": [[["global", "local"], 1]]})[0].windows == (None, 9)
    with pytest.raises(ModelConfigError, match="`attention_types` must say `global` or `local` of each of 2 layers"):
        read_config({**config, "attention_types": types})


def test_only_phi_moe_reads_the_scales_of_its_rotary_embedding() -> None:
    rope = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "short_mscale": 1.2}
    given = {"num_attention_heads": 4, "hidden_size": 32, "num_key_value_heads": 4, "rope_scaling": rope}
    with pytest.raises(ModelConfigError, match="rope type `longrope` needs `long_mscale`"):
        read_config({"architectures": ["PhimoeForCausalLM"], **given})
    rope["long_mscale"] = 1.3
    for architecture, expected in {"PhimoeForCausalLM": (1.2, 1.3), "Phi3ForCausalLM": (None, None)}.items():
        attention = read_config({"architectures": [architecture], **given})[0].attention
        assert attention is not None
        assert attention.rope is not None
        assert (attention.rope.short_mscale, attention.rope.long_mscale) == expected


def test_layers_with_a_window_have_more_keys_sinks_and_narrower_values_in_mimo() -> None:
    """Published files list the layers in one way, transformers writes them in another."""
    config = {"architectures": ["MiMoV2FlashForCausalLM"], "num_hidden_layers": 3, "sliding_window_size": 128}
    spec, _ = read_config({**config, "hybrid_layer_pattern": [0, 1, 0], "moe_layer_freq": [0, 1, 1]})
    mixers = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, Attention)]
    assert spec.windows == (None, 129, None)
    assert [(each.num_kv_heads, each.has_sinks, each.head_dim, each.value_dim) for each in mixers] == [
        *[(4, False, 192, 128), (8, True, 192, 128), (4, False, 192, 128)]
    ]
    assert [type(layer.feed_forward).__name__ for layer in spec.layers] == ["MLP", "Experts", "Experts"]
    assert read_config({**config, "num_hidden_layers": 7})[0].windows == (None, *[129] * 4, None, 129)
    with pytest.raises(ModelConfigError, match="`hybrid_layer_pattern` must be a list of 3 numbers"):
        read_config({**config, "hybrid_layer_pattern": [0, 2, 1]})
    with pytest.raises(ModelConfigError, match="`moe_layer_freq` must be a number, or have one for layer 1"):
        read_config({**config, "moe_layer_freq": [0]})
    with pytest.raises(ModelConfigError, match="`v_head_dim` is 200, more than `head_dim`"):
        read_config({**config, "v_head_dim": 200})


def test_heads_of_differential_attention_are_pairs() -> None:
    config = {"architectures": ["DiffLlamaForCausalLM"], "num_hidden_layers": 2, "num_attention_heads": 8}
    spec, _ = read_config({**config, "num_key_value_heads": 4, "head_dim": 16})
    first, second = (layer.mixer for layer in spec.layers)
    assert isinstance(first, Attention)
    assert isinstance(second, Attention)
    assert (first.num_heads, first.num_kv_heads, first.head_dim, first.query_dim, first.scale) == (8, 2, 32, 16, 0.25)
    assert first.keeps.width == 2 * 4 * 16
    assert (first.lambda_start, second.lambda_start) == (pytest.approx(0.2), pytest.approx(0.8 - 0.6 * 0.74081822))
    assert tensor_parallel_problem(spec, 2) is None
    assert tensor_parallel_problem(spec, 4) == "2 pairs of key-value heads cannot be divided by 4"
    with pytest.raises(ModelConfigError, match="1 key-value heads cannot be pairs"):
        read_config({**config, "num_key_value_heads": 1})


def test_kinds_of_layers_of_recurrent_gemma_are_repeated() -> None:
    config = {"architectures": ["RecurrentGemmaForCausalLM"], "num_hidden_layers": 5}
    spec, _ = read_config({**config, "block_types": ["recurrent", "attention"], "hidden_size": 2560})
    assert [layer.mixer and layer.mixer.kind for layer in spec.layers] == ["rg_lru", "attention"] * 2 + ["rg_lru"]
    assert spec.windows == (None, 2048, None, 2048, None)
    assert spec.embedding_scale == 50.5  # the root in bfloat16
    assert tensor_parallel_problem(spec, 5) is None
    assert tensor_parallel_problem(spec, 4) == "10 heads of a recurrent layer cannot be divided by 4"
    for kinds in ([], "recurrent", ["mamba"], [3]):
        with pytest.raises(ModelConfigError, match="it must be a list of recurrent and attention"):
            read_config({**config, "block_types": kinds})
    with pytest.raises(ModelConfigError, match="`lru_width` 2559 is no multiple of `num_attention_heads` 10"):
        read_config({**config, "lru_width": 2559})
    spec, _ = read_config({**config, "hidden_activation": "mish"})
    assert support_problem(spec) == "gates with the activation 'mish' are not supported"


def test_blocks_of_zamba_share_the_weights_of_the_first_in_turn() -> None:
    kinds = ["hybrid", "mamba", "hybrid", "hybrid", "linear_attention", "hybrid"]
    config = {"architectures": ["Zamba2ForCausalLM"], "num_hidden_layers": 6, "hidden_size": 64}
    spec, _ = read_config({**config, "layers_block_type": kinds, "num_mem_blocks": 2, "adapter_rank": 3})
    assert {index: block.weights_of for index, block in spec.blocks.items()} == {0: None, 2: None, 3: 0, 5: 2}
    shapes = model_shapes(spec)
    assert shapes["model.layers.5.adapters.gate_up_proj.1.weight"] == (2 * 256, 3)
    assert [name for name in shapes if name.startswith("model.layers.5.shared_transformer.")] == []
    assert pipeline_problem(spec, 2) == "some layers share weights"
    assert list(read_config({**config, "num_hidden_layers": 54})[0].blocks) == [6, 12, 18, 24, 30, 36, 42, 47, 51]
    spec, _ = read_config({"architectures": ["ZambaForCausalLM"]})
    assert list(spec.blocks) == [2, *range(7, 76, 6)]
    assert [index for index, block in spec.blocks.items() if block.weights_of is None] == [2]
    with pytest.raises(ModelConfigError, match="7424 channels of a state cannot be divided into 3 heads"):
        read_config({"architectures": ["ZambaForCausalLM"], "n_mamba_heads": 3})
    with pytest.raises(ModelConfigError, match="`layer_types` must name 6 layers"):
        read_config({**config, "layers_block_type": kinds[1:]})


def test_the_scale_of_scores_is_that_of_the_head_where_none_is_written() -> None:
    found = [read_config({"architectures": [f"{name}ForCausalLM"]})[0] for name in ("HyperCLOVAX", "Granite")]
    assert [spec.attention and spec.attention.scale for spec in found] == [None, 1.0]


@pytest.mark.parametrize("is_stacked", [False, True])
def test_fused_experts_are_read_by_the_shape_of_their_outputs(is_stacked: bool) -> None:
    """Published files of Qwen3-VL have columns; transformers writes rows."""
    sizes = {**_HEADS, "num_key_value_heads": 2, "num_experts": 4, "moe_intermediate_size": 3}
    spec, _ = read_config({"architectures": ["Qwen3VLMoeForConditionalGeneration"], **sizes})
    wanted = model_shapes(spec)
    parts = {"gate_up_proj": (4, 6, 8), "down_proj": (4, 8, 3)}
    fused = {
        f"model.layers.0.mlp.experts.{name}": shape if is_stacked else (shape[0], shape[2], shape[1])
        for name, shape in parts.items()
    }
    files = {name: shape for name, shape in wanted.items() if ".experts." not in name} | fused
    stored = {name: StoredTensor(Path("m"), "F16", shape, 0) for name, shape in files.items()}
    assert tensors_of(Path("m"), stored, spec).keys() == wanted.keys()


@pytest.mark.parametrize(("name", "problem"), [
    ("GemmaForCausalLM", ""),
    ("Gemma2ForCausalLM", "attention that sees later tokens with a limit of its scores is not supported"),
    ("Gemma3ForCausalLM", ""),
])  # fmt: skip
def test_gemma_reads_both_ways_where_config_json_says_so(name: str, problem: str) -> None:
    """It was computed as if each token saw only those before it."""
    spec, _ = read_config({"architectures": [name], "use_bidirectional_attention": True})
    assert support_problem(spec) == problem
    assert not spec.is_causal
    assert not spec.generates
    spec, _ = read_config({"architectures": [name], "use_bidirectional_attention": False})
    assert support_problem(spec) == ""
    assert spec.is_causal
    assert spec.generates


def test_the_softcap_of_scores_is_gemma_2s() -> None:
    """Gemma 3 has the key too, and transformers does not apply it."""
    caps = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}
    found = {name: read_config({"architectures": [f"{name}ForCausalLM"], **caps})[0] for name in ("Gemma2", "Gemma3")}
    assert [spec.attention and spec.attention.softcap for spec in found.values()] == [3.0, None]
    assert [spec.logits_softcap for spec in found.values()] == [5.0, 5.0]


@pytest.mark.parametrize(
    ("shared", "reason"),
    [
        (30, "none of the other layers has "),
        (26, "none of the other layers has full attention"),
        (-1, "`num_kv_shared_layers` is -1; it must be a whole number from 1 to "),
    ],
)
def test_layers_that_share_keys_need_some_that_have_them(shared: int, reason: str) -> None:
    with pytest.raises(ModelConfigError, match=re.escape(reason)):
        read_config({"architectures": ["Gemma4ForCausalLM"], "num_kv_shared_layers": shared})


def test_checkpoints_may_have_keys_that_no_layer_reads(tmp_path: Path) -> None:
    """Those of Gemma 4 E2B and E4B have projections and norms of keys in all layers."""
    sizes = {"num_hidden_layers": 3, "num_kv_shared_layers": 1, "hidden_size": H, "vocab_size": V}
    kinds = {"layer_types": ["full_attention"] * 3}
    spec, _ = read_config({"architectures": ["Gemma4ForCausalLM"], **sizes, **kinds})
    wanted = model_shapes(spec)
    unused = {f"model.layers.2.self_attn.{name}.weight": (V, H) for name in ("k_proj", "v_proj", "k_norm")}
    assert not wanted.keys() & unused.keys()
    stored = {name: StoredTensor(tmp_path, "F32", shape, 0) for name, shape in (wanted | unused).items()}
    assert tensors_of(tmp_path, stored, spec).keys() == wanted.keys()


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_a_language_model_has_the_embedding_of_the_whole_model_where_it_has_none(key: str) -> None:
    """Of a multimodal model whose config.json describes both in one object."""
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16}
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        **_HEADS,
        "intermediate_size": F,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "vision_config": {"hidden_size": 4},
        key: yarn,
    }
    mixer = read_config(config)[0].layers[0].mixer
    assert isinstance(mixer, Attention)
    assert mixer.rope is not None
    assert (mixer.rope.kind, mixer.rope.factor) == ("yarn", 4.0)


def test_layers_of_gemma_4_are_named_by_numbers_however_they_are_written() -> None:
    """From 11 layers on transformers pads them with zeros, so that they are sorted: such files were refused."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 4
    config = {"architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 12, "layer_types": kinds, "head_dim": 24}
    wide = [index for index, kind in enumerate(kinds) if kind == "full_attention"]
    padded, plain = ({f"{index:{form}}": {"head_dim": 48} for index in wide} for form in ("02", ""))
    spec, _ = read_config({**config, "per_layer_config": padded})
    assert next(iter(padded)) == "02"
    assert spec == read_config({**config, "per_layer_config": plain})[0]
    assert spec == read_config({**config, "per_layer_config": {int(index): own for index, own in plain.items()}})[0]
    assert spec.head_dims == (24, 48)
    with pytest.raises(ModelConfigError, match="`per_layer_config` is supported"):
        read_config({**config, "per_layer_config": {**padded, "03": {"head_dim": 48}}})
