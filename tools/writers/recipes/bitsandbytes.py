"""bitsandbytes, through transformers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from ..record import BASE, record, target

FOUR: dict[str, Any] = {"load_in_4bit": True, "bnb_4bit_compute_dtype": torch.float32}
CONFIGS = {
    "bitsandbytes-nf4": {**FOUR, "bnb_4bit_quant_type": "nf4"},
    "bitsandbytes-fp4": {**FOUR, "bnb_4bit_quant_type": "fp4"},
    "bitsandbytes-nf4-double": {**FOUR, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "bitsandbytes-int8": {"load_in_8bit": True, "llm_int8_threshold": 0.0},
}


def matrices(model: Any) -> dict[str, torch.Tensor]:
    import bitsandbytes as bnb

    found = {}
    for name, layer in model.named_modules():
        if isinstance(layer, bnb.nn.Linear4bit):
            layer.weight.quant_state.dtype = torch.float32  # otherwise the values are rounded to the dtype of before
            found[name] = bnb.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
        elif isinstance(layer, bnb.nn.Linear8bitLt):
            found[name] = layer.weight.CB.float() * (layer.weight.SCB.float()[:, None] / 127)
    return found


def main() -> None:
    for name, config in CONFIGS.items():
        folder = target(name)
        made = AutoModelForCausalLM.from_pretrained(
            BASE, quantization_config=BitsAndBytesConfig(**config), dtype=torch.bfloat16, device_map="cpu"
        )
        made.save_pretrained(folder)
        read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu")
        record(folder, read, matrices(read), "bitsandbytes")


if __name__ == "__main__":
    main()
