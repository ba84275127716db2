"""compressed-tensors, written by llm-compressor."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import torch
from compressed_tensors.compressors import decompress_module
from compressed_tensors.compressors.nvfp4 import base as nvfp4
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.awq import AWQModifier
from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
from transformers import AutoModelForCausalLM

from ..record import BASE, record, target
from ..texts import texts

LENGTH = 64
ALL: dict[str, Any] = {"targets": "Linear", "ignore": ["lm_head"]}


def grouped(size: int, *, symmetric: bool = True) -> QuantizationScheme:
    weights = QuantizationArgs(num_bits=4, strategy="group", group_size=size, symmetric=symmetric)
    return QuantizationScheme(targets=["Linear"], weights=weights)


def own(scheme: QuantizationScheme) -> dict[str, Any]:
    return {"config_groups": {"group_0": scheme}, "ignore": ["lm_head"]}


MIXED = {
    "ignore": ["lm_head", "re:.*layers.1.mlp.down_proj"],
    "config_groups": {
        "attention": QuantizationScheme(
            targets=["re:.*self_attn.*"], weights=QuantizationArgs(num_bits=8, type="float", strategy="channel")
        ),
        "dense": QuantizationScheme(
            targets=["re:.*mlp.*"], weights=QuantizationArgs(num_bits=4, strategy="group", group_size=32)
        ),
    },
}
RECIPES: dict[str, Any] = {
    "w4a16": QuantizationModifier(**ALL, scheme="W4A16"),
    "w4a16-asymmetric": QuantizationModifier(**ALL, scheme="W4A16_ASYM"),
    "w4a16-gptq": GPTQModifier(**own(grouped(32))),
    "w4a16-awq": AWQModifier(**own(grouped(32, symmetric=False)), duo_scaling=False),
    "w8a16": QuantizationModifier(**ALL, scheme="W8A16"),
    "w8a8": QuantizationModifier(**ALL, scheme="W8A8"),
    "fp8-dynamic": QuantizationModifier(**ALL, scheme="FP8_DYNAMIC"),
    "fp8-static": QuantizationModifier(**ALL, scheme="FP8"),
    "fp8-block": QuantizationModifier(**ALL, scheme="FP8_BLOCK"),
    "nvfp4": QuantizationModifier(**ALL, scheme="NVFP4"),
    "nvfp4a16": QuantizationModifier(**ALL, scheme="NVFP4A16"),
    "mxfp4a16": QuantizationModifier(**ALL, scheme="MXFP4A16"),
    "mxfp8a16": QuantizationModifier(**ALL, scheme="MXFP8A16"),
    "mixed": QuantizationModifier(**MIXED),
}


def matrices(model: Any) -> dict[str, torch.Tensor]:
    found = {}
    for name, module in model.named_modules():
        if getattr(module, "quantization_scheme", None) is not None:
            plain = deepcopy(module)
            decompress_module(plain)
            found[name] = plain.weight.float()
    return found


def main() -> None:
    # otherwise values of 4-bit floats are rounded to bfloat16, whatever dtype the model has
    nvfp4.unpack_fp4_from_uint8 = partial(nvfp4.unpack_fp4_from_uint8, dtype=torch.float32)
    torch.Tensor.pin_memory = lambda tensor: tensor  # AWQModifier calls it without a GPU too, where it fails
    rows = texts(32, LENGTH)
    data = Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * LENGTH] * len(rows)})
    for name, recipe in RECIPES.items():
        model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.bfloat16)
        oneshot(
            model=model,
            dataset=data,
            recipe=recipe,
            num_calibration_samples=len(rows),
            max_seq_length=LENGTH,
            pipeline="basic",
        )
        folder = target(f"compressed-tensors-{name}")
        model.save_pretrained(folder, save_compressed=True)
        is_rounded = name.startswith("mxfp8")  # which the library computes in bfloat16 only
        read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16 if is_rounded else torch.float32)
        record(folder, read, matrices(read), "compressed-tensors", "llmcompressor")


if __name__ == "__main__":
    main()
