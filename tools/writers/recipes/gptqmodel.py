"""GPTQModel: its own two formats, and AWQ's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from gptqmodel.quantization import FORMAT, METHOD
from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
from safetensors.torch import load_file

from ..record import BASE, record, target
from ..texts import texts

LENGTH = 64
CONFIGS: dict[str, dict[str, Any]] = {
    "gptq-4": {},
    "gptq-4-asymmetric": {"sym": False},
    "gptq-4-act-order": {"desc_act": True},
    "gptq-4-v2": {"format": FORMAT.GPTQ_V2, "sym": False},
    "gptq-8": {"bits": 8},
    "gptq-3": {"bits": 3},
    "gptq-2": {"bits": 2},
    "gptq-dynamic": {
        "dynamic": {r"-:.*layers\.1\.mlp\.down_proj.*": {}, r"+:.*self_attn.*": {"bits": 8, "group_size": 64}}
    },
    "awq-gemm": {"method": METHOD.AWQ, "format": FORMAT.GEMM, "sym": False},
}


def matrices(model: Any, folder: Path) -> dict[str, torch.Tensor]:
    """Matrices with the scales of the file: the library's are in the model's dtype."""
    stored = load_file(folder / "model.safetensors")
    found = {}
    for name, layer in model.named_modules():
        if not hasattr(layer, "qweight"):
            continue
        scales = stored[f"{name}.scales"].float()
        if hasattr(layer, "dequantize_weight"):
            rounded, layer.scales = layer.scales, scales
            values = layer.dequantize_weight()
            layer.scales = rounded
        else:
            values = dequantize_gemm(layer.qweight, layer.qzeros, scales, layer.bits, layer.group_size)
        found[name] = values.float().T.contiguous()
    return found


def main() -> None:
    rows = [{"input_ids": row, "attention_mask": [1] * LENGTH} for row in texts(64, LENGTH)]
    for name, changes in CONFIGS.items():
        config = QuantizeConfig(**{"bits": 4, "group_size": 32, "desc_act": False, "sym": True, **changes})
        model = GPTQModel.load(str(BASE), config, device="cpu")
        model.quantize(rows, batch_size=8)
        folder = target(f"gptqmodel-{name}")
        model.save(str(folder))
        backend = BACKEND.TORCH_AWQ if "awq" in name else BACKEND.TORCH
        read = GPTQModel.load(str(folder), backend=backend, device="cpu", dtype=torch.bfloat16).model
        record(folder, read, matrices(read, folder), "GPTQModel")


if __name__ == "__main__":
    main()
