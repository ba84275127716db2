"""AutoRound: its own format and GPTQ's. One layer is left out, which each writes in its own way.

It also packs as AWQ does, and has no computation on CPUs of that.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from auto_round import AutoRound
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoRoundConfig, PreTrainedTokenizerFast

from ..base import SIZES
from ..record import BASE, record, target
from ..texts import texts

LENGTH = 64
FORMATS = {
    "auto-round": "auto_round",
    "gptq": "auto_gptq",
}


def tokenizer() -> PreTrainedTokenizerFast:
    """The library asks for one, and does not use it for token ids."""
    words = Tokenizer(models.WordLevel({f"t{index}": index for index in range(SIZES["vocab_size"])}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0", pad_token="t0")


def matrices(model: Any) -> dict[str, torch.Tensor]:
    """Matrices as products of the library's layers with unit vectors, in float32."""
    found = {}
    for name, layer in model.named_modules():
        if hasattr(layer, "qweight"):
            found[name] = layer(torch.eye(layer.infeatures)).T.contiguous()
    return found


def read(folder: Path, place: Path, format: str) -> Any:
    """Read tensors with the library, which takes the formats of others under the name of its own format."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place)
    if format != "auto_round":
        file = place / "config.json"
        config = json.loads(file.read_text())
        own = {"quant_method": "auto-round", "packing_format": f"auto_round:{format}"}
        left_out = {"model.layers.1.mlp.down_proj": {"bits": 16}}
        config["quantization_config"] |= {**own, "extra_config": left_out, "block_name_to_quantize": "model.layers"}
        file.write_text(json.dumps(config))
    return AutoModelForCausalLM.from_pretrained(
        place, dtype=torch.float32, device_map="cpu", quantization_config=AutoRoundConfig(backend="torch")
    )


def main() -> None:
    rows = [row[None] for row in torch.tensor(texts(16, LENGTH))]
    for name, format in FORMATS.items():
        model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.bfloat16)
        rounding = AutoRound(
            model,
            tokenizer=tokenizer(),
            scheme="W4A16",
            group_size=32,
            iters=2,
            nsamples=len(rows),
            seqlen=LENGTH,
            batch_size=8,
            dataset=rows,
            device_map="cpu",
            layer_config={"model.layers.1.mlp.down_proj": {"bits": 16}},
        )
        folder = target(f"autoround-{name}")
        made = BASE.parent / "made"
        shutil.rmtree(made, ignore_errors=True)
        rounding.quantize_and_save(output_dir=str(made), format=format)
        (place,) = made.iterdir()
        for file in ("config.json", "model.safetensors"):
            shutil.copy(place / file, folder)
        found = read(folder, made / "read", format)
        with torch.no_grad():
            record(folder, found, matrices(found), "auto-round")


if __name__ == "__main__":
    main()
