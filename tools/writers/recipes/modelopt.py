"""NVIDIA's Model Optimizer, as it exports for serving. Its own computation is the model before the export."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, INT8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ..record import BASE, record, target
from ..texts import texts

CONFIGS = {
    "fp8": mtq.FP8_DEFAULT_CFG,
    "fp8-per-channel": mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG,
    "fp8-block": mtq.FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG,
    "mxfp8": mtq.MXFP8_DEFAULT_CFG,
    "nvfp4": mtq.NVFP4_DEFAULT_CFG,
    "w4a16-nvfp4": mtq.W4A16_NVFP4_CFG,
    "w4a8-nvfp4-fp8": mtq.W4A8_NVFP4_FP8_CFG,
    "mxfp4": mtq.MXFP4_DEFAULT_CFG,
    "w8a16": mtq.INT8_WEIGHT_ONLY_CFG,
    "w8a8": mtq.INT8_DEFAULT_CFG,
}
WITHOUT_CPU = ("mxfp8", "mxfp4", "nvfp4", "w4a16-nvfp4", "w4a8-nvfp4-fp8")  # their kernels are for CUDA only


def matrices(folder: Path) -> dict[str, torch.Tensor]:
    stored = load_file(folder / "model.safetensors")
    found = {}
    for name, scale in stored.items():
        layer, _, end = name.rpartition(".")
        if end == "weight_scale":
            codes = stored[f"{layer}.weight"]
            found[layer] = dequantised(folder.name, codes, scale, stored.get(f"{layer}.weight_scale_2"))
    return found


def dequantised(name: str, codes: torch.Tensor, scale: torch.Tensor, whole: torch.Tensor | None) -> torch.Tensor:
    """float32 [outputs, inputs], by the library's classes of quantised tensors."""
    shape = torch.Size((len(codes), codes.shape[1] * (2 if codes.dtype == torch.uint8 else 1)))
    if whole is not None:
        sizes = {-1: shape[1] // scale.shape[1]}
        return NVFP4QTensor(shape, torch.float32, codes).dequantize(scale=scale, double_scale=whole, block_sizes=sizes)
    if scale.dtype == torch.uint8:
        kind = MXFP4QTensor if codes.dtype == torch.uint8 else MXFP8QTensor
        return kind(shape, torch.float32, codes).dequantize(scale=scale, block_sizes={-1: 32})
    kind = INT8QTensor if codes.dtype == torch.int8 else FP8QTensor
    if name.endswith("block"):  # one block: all matrices have at most 128 outputs and inputs
        scale = scale.reshape(1, 1)
        return kind(shape, torch.float32, codes).dequantize(scale=scale, block_sizes={-1: 128, -2: 128})
    return kind(shape, torch.float32, codes).dequantize(scale=scale[:, None] if scale.dim() else scale)


def main() -> None:
    rows = torch.tensor(texts(16, 64))
    for name, config in CONFIGS.items():
        plain = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
        model = deepcopy(plain)
        mtq.quantize(model, config, None if name in WITHOUT_CPU else lambda model: model(rows))
        folder = target(f"modelopt-{name}")
        export_hf_checkpoint(deepcopy(model), dtype=torch.bfloat16, export_dir=folder)
        computes = name not in WITHOUT_CPU
        record(folder, model if computes else plain, matrices(folder), "nvidia-modelopt", computes=computes)


if __name__ == "__main__":
    with torch.no_grad():
        main()
