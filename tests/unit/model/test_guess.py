from __future__ import annotations

import pytest
from tests.unit.config.plan.shapes import SHAPES

from stoker.model.guess import guess
from stoker.model.read import read_config
from stoker.model.sizes import count_parameters


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_counted_within_a_thousandth_of_what_is_published(name: str) -> None:
    config, published, _ = SHAPES[name]
    assert count_parameters(read_config(config)[0]).total == pytest.approx(published, rel=1e-3)


def test_only_the_experts_that_run_count_for_a_token() -> None:
    count = count_parameters(guess(SHAPES["qwen3-30b-a3b"][0]))
    assert count.active == pytest.approx(3.04e9, rel=0.01)


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
    spec = guess(config)
    assert spec.num_layers == 2
    assert any(assumed in assumption for assumption in spec.assumptions)


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
    spec = guess({**SHAPES["llama-3.1-8b"][0], "quantization_config": written})
    assert spec.quantization is not None
    assert (spec.quantization.name, spec.quantization.bits) == (method, bits)


def test_a_class_for_causal_language_models_is_the_decoder_of_an_encoder_decoder_alone() -> None:
    sides = {"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 96, "encoder_layers": 12}
    written = {"model_type": "bart", "d_model": 64, "num_hidden_layers": 12, "is_encoder_decoder": True, **sides}
    alone = guess({**written, "architectures": ["BartForCausalLM"]})
    assert [layer.mixer.kind for layer in alone.layers if layer.mixer] == ["attention"] * 2
    assert alone.attention is not None
    assert alone.attention.head_dim == 16
    whole = guess({**written, "architectures": ["BartForConditionalGeneration"]})
    assert whole.layers[-1].mixer is not None
    assert whole.layers[-1].mixer.kind == "cross_attention"


def test_rows_for_padding_in_a_table_of_positions_are_of_no_token() -> None:
    written = {"hidden_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 514, "pad_token_id": 1}
    assert guess({"model_type": "xlm-roberta", **written}).max_position_embeddings == 512
    assert guess({"model_type": "bert", **written}).max_position_embeddings == 514
