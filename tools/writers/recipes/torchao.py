"""torchao, through transformers. Its 4-bit formats are packed for one kind of GPU each; what is here is for any."""

from __future__ import annotations

from typing import Any

import torch
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxUnpackedToInt8Tensor,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
)
from torchao.utils import TorchAOBaseTensor
from transformers import AutoModelForCausalLM, TorchAoConfig

from ..record import BASE, record, target

CONFIGS = {
    "int8": Int8WeightOnlyConfig(),
    "w8a8": Int8DynamicActivationInt8WeightConfig(),
    "fp8": Float8WeightOnlyConfig(),
    "int4-groups": IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
    "int6-rows": IntxWeightOnlyConfig(weight_dtype=torch.int6, granularity=PerAxis(0)),
    "w4a8": Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32)),
}


def matrices(model: Any) -> dict[str, torch.Tensor]:
    found = {}
    for name, layer in model.named_modules():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, IntxUnpackedToInt8Tensor):  # dequantises to the dtype that its scales have
            found[name] = weight.to(torch.float32).dequantize()
        elif isinstance(weight, TorchAOBaseTensor):
            found[name] = weight.dequantize(torch.float32)
    return found


def main() -> None:
    for name, config in CONFIGS.items():
        made = AutoModelForCausalLM.from_pretrained(
            BASE, quantization_config=TorchAoConfig(config), dtype=torch.bfloat16, device_map="cpu"
        )
        folder = target(f"torchao-{name}")
        made.save_pretrained(folder)
        read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="cpu")
        with torch.no_grad():
            record(folder, read, matrices(read), "torchao")


if __name__ == "__main__":
    main()
