"""AMD Quark, as it exports to safetensors."""

from __future__ import annotations

import torch
from quark.torch import ModelQuantizer, export_safetensors, import_model_from_safetensors
from quark.torch.export.nn.modules.qparamslinear import QParamsLinear
from quark.torch.quantization.config.config import (
    FP8E4M3PerChannelSpec,
    FP8E4M3PerTensorSpec,
    Int8PerChannelSpec,
    OCP_MXFP4Spec,
    QConfig,
    QLayerConfig,
    Uint4PerGroupSpec,
)
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

from ..record import BASE, record, target
from ..texts import texts

FP8 = FP8E4M3PerTensorSpec(observer_method="min_max", is_dynamic=False).to_quantization_spec()
SPECS = {
    "fp8": {"weight": FP8, "input_tensors": FP8},
    "fp8-channel": {"weight": FP8E4M3PerChannelSpec(ch_axis=0, is_dynamic=False).to_quantization_spec()},
    "int8": {"weight": Int8PerChannelSpec(symmetric=True, ch_axis=0, is_dynamic=False).to_quantization_spec()},
    "uint4": {
        "weight": Uint4PerGroupSpec(ch_axis=-1, group_size=32, symmetric=False, is_dynamic=False).to_quantization_spec()
    },
    "mxfp4": {"weight": OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False).to_quantization_spec()},
}


def matrices(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    found = {}
    for name, layer in model.named_modules():
        if isinstance(layer, QParamsLinear):
            found[name] = layer._get_qweight(layer.weight).float()
    return found


def main() -> None:
    rows = torch.tensor(texts(16, 64))
    for name, spec in SPECS.items():
        model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.bfloat16)
        config = QConfig(global_quant_config=QLayerConfig(**spec), exclude=["lm_head", "*layers.1.mlp.down_proj"])
        quantizer = ModelQuantizer(config)
        model = quantizer.freeze(quantizer.quantize_model(model, DataLoader(rows, batch_size=8)))
        folder = target(f"quark-{name}")
        with torch.no_grad():
            export_safetensors(model, str(folder))
            plain = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
            read = import_model_from_safetensors(plain, str(folder), device="cpu").float()
            record(folder, read, matrices(read), "amd-quark")


if __name__ == "__main__":
    main()
