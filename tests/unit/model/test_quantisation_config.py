"""Which layers a quantization_config says are quantised, and how; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.quantisation_config import read_quantisation
from stoker.model.weight_methods import CheckpointMethod

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
WEIGHTS = {"num_bits": 4, "type": "int", "group_size": 128}
GROUP = {"targets": ["Linear"], "weights": WEIGHTS}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"a": GROUP}}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
QUARK: dict[str, Any] = {
    "quant_method": "quark",
    "global_quant_config": {
        "weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
    },
}
ATTENTION, MLP = "model.layers.3.self_attn.q_proj", "model.layers.3.mlp.down_proj"


def torchao(name: str) -> dict[str, Any]:
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": name, "_data": {}}}}


def quark(dtype: str, scheme: str) -> dict[str, Any]:
    weight = {"dtype": dtype, "qscheme": scheme, "group_size": 32}
    return {"quant_method": "quark", "global_quant_config": {"weight": weight}}


def read(config: dict[str, Any]) -> CheckpointMethod:
    found = read_quantisation({"quantization_config": config}, {})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("config", "attention", "mlp"),
    [
        (GPTQ, "gptq 4-bit in groups of 128", "gptq 4-bit in groups of 128"),
        ({**GPTQ, "dynamic": {r"-:.*\.mlp\..*": {}}}, "gptq 4-bit in groups of 128", None),
        (
            {**GPTQ, "dynamic": {r"+:.*self_attn": {"bits": 8, "group_size": -1}}},
            "gptq 8-bit, a scale per output",
            "gptq 4-bit in groups of 128",
        ),
        ({**GPTQ, "modules_to_not_convert": ["self_attn"]}, None, "gptq 4-bit in groups of 128"),
        ({**COMPRESSED, "ignore": ["re:.*down_proj"]}, "packed int4 in groups of 128", None),
        (
            {
                **GPTQ,
                "quant_method": "auto-round",
                "packing_format": "auto_round:auto_gptq",
                "extra_config": {MLP: {"bits": 16}, ".*q_proj": {"bits": 8, "group_size": 32}},
            },
            "gptq 8-bit in groups of 32",
            None,
        ),
        ({**COMPRESSED, "ignore": [MLP]}, "packed int4 in groups of 128", None),
        ({**MODELOPT, "exclude_modules": ["lm_head", "model.layers.3.mlp*"]}, "nvfp4", None),
        ({**MODELOPT, "quant_method": "modelopt_fp4", "ignore": ["*.q_proj"]}, None, "nvfp4"),
        (
            {
                **QUARK,
                "exclude": ["*mlp.down_proj"],
                "layer_quant_config": {"*q_proj": {"weight": {"dtype": "int8", "qscheme": "per_channel"}}},
            },
            "int8, a scale per output",
            None,
        ),
        (
            {
                **MODELOPT,
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {
                    ATTENTION: {"quant_algo": "FP8"},
                    MLP: {"quant_algo": "W4A16_NVFP4", "group_size": 16},
                },
            },
            "fp8, a scale per matrix",
            "nvfp4",
        ),
        (
            {
                **COMPRESSED,
                "format": "mixed-precision",
                "config_groups": {
                    "a": {"targets": ["re:.*self_attn.*"], "weights": WEIGHTS, "format": "pack-quantized"},
                    "b": {
                        "targets": [r"re:.*\.(gate|up|down)_proj$"],
                        "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
                        "format": "float-quantized",
                    },
                },
            },
            "packed int4 in groups of 128",
            "fp8, a scale per output",
        ),
    ],
)
def test_each_layer_has_the_method_of_its_rule(config: dict[str, Any], attention: str | None, mlp: str | None) -> None:
    found = read(config)
    assert not found.problem
    methods = found.of_layer(ATTENTION), found.of_layer(MLP)
    assert [method and method.shown for method in methods] == [attention, mlp]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"quant_method": "aqlm"}, "the quantisation method 'aqlm' is not supported"),
        ({"quant_method": "hqq"}, "the quantisation method 'hqq' is not supported; hqq writes a pickle of its own"),
        ({**GPTQ, "bits": 5}, "`bits` is 5; supported: 2, 3, 4, 8"),
        ({**GPTQ, "bits": True}, "`bits` is True"),
        ({**GPTQ, "group_size": 0}, "`group_size` is 0"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "`checkpoint_format` is 'marlin'; supported: gptq, gptq_v2"),
        ({**GPTQ, "dynamic": {"-:(a+)+$": {}}}, "`dynamic` has '(a+)+$', which is too complex"),
        ({**GPTQ, "dynamic": {"-:(": {}}}, "which is not a regular expression"),
        ({**GPTQ, "modules_to_not_convert": "lm_head"}, "`modules_to_not_convert` is 'lm_head'; it must be a list"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "`version` is 'gemv'; supported: gemm"),
        ({**GPTQ, "quant_method": "auto-round", "packing_format": "mx_fp"}, "`packing_format` is 'mx_fp'; supported: "),
        ({**COMPRESSED, "config_groups": {}}, "`config_groups` is {}"),
        ({**COMPRESSED, "format": "marlin-24"}, "weights of type int in 4 bits in the format 'marlin-24'"),
        ({**COMPRESSED, "sparsity_config": {"format": "sparse-24-bitmask"}}, "`sparsity_config` is not supported"),
        ({**MODELOPT, "quant_algo": "W4A16_AWQ"}, "`quant_algo` is 'W4A16_AWQ'; supported: FP8, "),
        (torchao("Int4WeightOnlyConfig"), "`_type` is 'Int4WeightOnlyConfig'; supported: Float8WeightOnlyConfig, "),
        (torchao("IntxWeightOnlyConfig"), "`intx_packing_format` is None; it must be an object"),
        (
            {"quant_method": "torchao", "quant_type": "int4_weight_only"},
            "`quant_type` is 'int4_weight_only'; it must be",
        ),
        (quark("int4", "per_group"), "`dtype` is 'int4'; supported: fp8_e4m3, int8, uint4, fp4"),
        (quark("uint4", "per_channel"), "weights of dtype uint4 with `qscheme` per_channel are not supported"),
        ({**QUARK, "export": {"weight_format": "fake_quantized"}}, "`weight_format` is 'fake_quantized'"),
        ({**QUARK, "layer_quant_config": [1]}, "`layer_quant_config` must be an object of objects"),
        ({**MODELOPT, "quant_algo": ["FP8"]}, "`quant_algo` is ['FP8']; supported: FP8, "),
        ({**MODELOPT, "quant_algo": "MIXED_PRECISION"}, "`quantized_layers` must be an object of objects"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "`fmt` is 'e5m2'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "`weight_block_size` is [128]; it must be two numbers"),
    ],
)
def test_what_is_not_read_is_described_with_the_reason(config: dict[str, Any], reason: str) -> None:
    assert reason in read(config).problem
