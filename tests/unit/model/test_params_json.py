"""params.json, the configuration of Mistral AI's own format."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.config_json import ModelConfigError
from stoker.model.feed_forwards import Experts
from stoker.model.mixers import Attention
from stoker.model.params_json import config_of
from stoker.model.read import read_config

SMALL_3 = {
    "dim": 5120,
    "n_layers": 40,
    "head_dim": 128,
    "hidden_dim": 32768,
    "n_heads": 32,
    "n_kv_heads": 8,
    "rope_theta": 1e9,
    "norm_eps": 1e-5,
    "vocab_size": 131072,
    "max_position_embeddings": 131072,
}
YARN = {"original_max_position_embeddings": 8192, "factor": 16, "apply_scale": False, "beta": 32, "alpha": 1}
GROWTH = {"original_max_position_embeddings": 8192, "beta": 0.1}


def attention(**changes: Any) -> Attention:
    mixer = read_config(config_of(SMALL_3 | changes))[0].layers[-1].mixer
    assert isinstance(mixer, Attention)
    return mixer


def test_every_value_is_that_of_config_json() -> None:
    spec, _ = read_config(config_of(SMALL_3))
    own = read_config(
        {
            "architectures": ["MistralForCausalLM"],
            "hidden_size": 5120,
            "num_hidden_layers": 40,
            "head_dim": 128,
            "intermediate_size": 32768,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "rope_theta": 1e9,
            "rms_norm_eps": 1e-5,
            "vocab_size": 131072,
            "max_position_embeddings": 131072,
            "sliding_window": None,
        }
    )[0]
    assert spec == own


def test_what_the_file_leaves_out_is_not_the_default_of_config_json() -> None:
    bare = {key: value for key, value in SMALL_3.items() if key not in ("max_position_embeddings", "rope_theta")}
    spec, _ = read_config(config_of(bare))
    assert (spec.max_position_embeddings, spec.windows[0], spec.is_tied) == (32768, None, False)
    assert read_config(config_of(bare | {"max_seq_len": 128000}))[0].max_position_embeddings == 128000
    assert attention(sliding_window=4096).window == attention(sliding_window=[4096, 4096]).window == 4096


def test_scaled_positions() -> None:
    rope = attention(yarn=YARN, llama_4_scaling=GROWTH).rope
    assert rope is not None
    assert (rope.kind, rope.theta, rope.factor, rope.attention_factor) == ("yarn", 1e9, 16, 1)
    assert (rope.original_max_position_embeddings, rope.llama_4_scaling_beta) == (8192, 0.1)
    assert getattr(attention(yarn=YARN | {"apply_scale": True}).rope, "attention_factor", 1) is None
    alone = attention(llama_4_scaling=GROWTH).rope
    assert alone is not None
    assert (alone.kind, alone.original_max_position_embeddings) == ("default", 8192)


def test_experts_and_encoders() -> None:
    spec, _ = read_config(config_of(SMALL_3 | {"moe": {"num_experts": 8, "num_experts_per_tok": 2}}))
    experts = spec.layers[0].feed_forward
    assert isinstance(experts, Experts)
    assert (experts.count, experts.per_token, experts.width) == (8, 2, 32768)
    spec, _ = read_config(config_of(SMALL_3 | {"vision_encoder": {"image_size": 1540}, "tied_embeddings": True}))
    assert (spec.is_part, spec.is_tied, spec.architecture) == (True, True, "Mistral3ForConditionalGeneration")
    spec, _ = read_config(config_of(SMALL_3 | {"quantization": {"qformat_weight": "fp8_e4m3"}}))
    assert spec.quantization is not None
    assert spec.quantization.name == "fp8"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": None}, "`dim` is None; it must be a whole number"),
        ({"hidden_dim": "x"}, "`hidden_dim` is 'x'; it must be a whole number"),
        ({"norm_eps": None}, "`norm_eps` is None; it must be a number above 0"),
        ({"rotations": 3, "moebius": 1}, "`moebius`, `rotations`: unknown, so this build cannot compute"),
        ({"yarn": YARN | {"mscale": 2}}, "`yarn.mscale`: unknown"),
        ({"moe": {"num_experts": 8, "num_experts_per_tok": 2, "first_k": 1}}, "`moe.first_k`: unknown"),
        ({"moe": {"num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 1}}, "`moe.num_shared_experts`"),
        ({"kv_lora_rank": 512}, "`kv_lora_rank`: attention over latents"),
        ({"llama_4_scaling": GROWTH | {"original_max_position_embeddings": 1}, "yarn": YARN}, "embeddings` differ"),
        ({"sliding_window": [None, 4096]}, "supported: the same window in all layers"),
        ({"activation": "gelu"}, "`activation` is 'gelu'; supported: 'silu'"),
        ({"model_type": "mamba"}, "`model_type` is 'mamba'; supported: 'transformer'"),
        ({"multimodal": {"whisper_model_args": {"x": 1}}}, "models with audio are not supported"),
        ({"yarn": 3}, "`yarn` is 3; it must be an object"),
    ],
)
def test_values_that_this_build_would_misread_are_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        config_of(SMALL_3 | changes)
    assert message in str(caught.value)


def test_the_keys_of_the_text_model_are_at_the_top_also_beside_an_encoder() -> None:
    """So that `model.hf_overrides` has the same keys for all models of this format."""
    config = config_of(SMALL_3 | {"vision_encoder": {"image_size": 1540}})
    assert read_config(config | {"max_position_embeddings": 5})[0].max_position_embeddings == 5
