"""Dummy weights: noise, and codes where config.json describes a quantised checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stoker.config.checkpoint.described import described_weights
from stoker.config.checkpoint.group_layouts import group_layout
from stoker.engine.kernels.dequantise_packed import dequantise
from stoker.engine.runner.dummy_weights import DummyWeights
from stoker.model.read import read_config


def test_dummy_weights_depend_on_seed_and_name_only():
    def made(seed: int, name: str) -> torch.Tensor:
        into = torch.empty(300, 200)
        DummyWeights(seed).read(name, into)
        return into

    weights = made(1, "a.weight")
    assert torch.equal(weights, made(1, "a.weight"))
    assert not torch.equal(weights, made(2, "a.weight"))
    assert not torch.equal(weights, made(1, "b.weight"))
    assert abs(weights.mean().item()) < 5e-4
    assert abs(weights.std().item() - 0.02) < 5e-4


def test_dummy_norms_are_one_and_biases_zero():
    weights = DummyWeights(0)
    norm, bias = torch.empty(4), torch.empty(4)
    weights.read("norm.weight", norm)
    weights.read("q_proj.bias", bias)
    assert norm.tolist() == [1.0] * 4
    assert bias.tolist() == [0.0] * 4


MATRIX = "model.layers.0.mlp.up_proj.weight"
INT4_GROUPS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
METHODS = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False},
    "gptq 8": {"quant_method": "gptq", "bits": 8, "group_size": -1},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"},
    "packed": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4_GROUPS}},
    },
    "packed with zeros": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4_GROUPS | {"symmetric": False}}},
    },
    "rounded int8": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
                "input_activations": {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"},
            }
        },
    },
    "torchao": {
        "quant_method": "torchao",
        "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {"group_size": None}}},
    },
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fp8 in blocks": {"quant_method": "fp8", "weight_block_size": [64, 32]},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "mxfp4": {"quant_method": "modelopt", "quant_algo": "MXFP4"},
    "bitsandbytes 4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "bitsandbytes 8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
}


def described(method: str):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        "torch_dtype": "bfloat16",
        "quantization_config": METHODS[method],
    }
    spec, _ = read_config(config)
    assert spec.quantization is not None
    assert not spec.quantization.problem
    return described_weights(Path("none"), spec).tensors


@pytest.mark.parametrize("method", METHODS)
def test_a_quantised_matrix_has_the_codes_and_scales_of_its_method(method: str):
    tensors = described(method)
    weights = DummyWeights(3, 0.02, tensors)
    grouped = weights.grouped(MATRIX, torch.bfloat16)
    stored = tensors[MATRIX]
    layout = group_layout(stored)
    assert grouped is not None
    assert layout is not None
    assert grouped.group == layout.group
    assert stored.packed is not None
    values = dequantise(stored.packed, weights._parts(stored.packed), slice(0, 256))
    assert torch.isfinite(values).all()
    assert values.std().item() == pytest.approx(0.02, rel=0.3)  # powers of two are not exact
    assert len(values.unique()) > 10
    same = DummyWeights(3, 0.02, tensors).grouped(MATRIX, torch.bfloat16)
    assert same is not None
    assert torch.equal(same.unpacked, grouped.unpacked)


def test_other_tensors_have_no_codes():
    weights = DummyWeights(0, 0.02, described("gptq"))
    assert weights.grouped("model.layers.0.input_layernorm.weight", torch.bfloat16) is None
    assert weights.grouped("model.unknown.weight", torch.bfloat16) is None
    assert weights.integers(MATRIX) is None
    assert DummyWeights(0).grouped(MATRIX, torch.bfloat16) is None


def test_weights_whose_inputs_are_rounded_are_integers():
    found = DummyWeights(0, 0.02, described("rounded int8")).integers(MATRIX)
    assert found is not None
    assert found.codes.dtype == torch.int8
    assert found.scales.shape == (256,)
