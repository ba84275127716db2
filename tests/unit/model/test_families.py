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
from stoker.model.read import read_config
from stoker.model.sizes import count_parameters
from stoker.model.spec import Attention
from stoker.model.support import not_supported
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
    assert not_supported(spec) == ""
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
    assert not_supported(spec) == reason


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
