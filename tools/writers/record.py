"""What a writing library computes from its own checkpoint, beside the checkpoint; runs in the library's environment.

`expected.json` has versions and greedy tokens; `expected.safetensors` the logits of a prompt, float32 [tokens,
vocabulary], and of each quantised matrix [outputs, inputs] its product with one vector, float64 [outputs]: a value that
is read wrongly changes it. Logits and tokens are those of the dequantised matrices in float32; the library's own, which
may round activations, are beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

BASE = Path(__file__).parents[2] / ".writers" / "base"
WRITTEN = Path(__file__).parents[2] / "tests" / "models" / "written"
PROMPT = [(7 * index * index + 31 * index + 5) % 256 for index in range(37)]
NUM_TOKENS = 16
MAX_BYTES = 400_000
KEPT = ("config.json", "expected.json", "hf_quant_config.json", "quantize_config.json", "model.safetensors.index.json")


def target(name: str) -> Path:
    """The folder of one checkpoint, empty."""
    folder = WRITTEN / name
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    return folder


def probe(inputs: int) -> Any:
    """The vector that matrices are multiplied with, float64 [inputs]: no two elements are alike."""
    import numpy as np

    return np.cos(1.7 * np.arange(inputs, dtype=np.float64) ** 1.3)


def record(folder: Path, model: Any, matrices: Mapping[str, Any], *packages: str, computes: bool = True) -> None:
    """Compute with the library's own model, which was read from the folder, and write what is expected.

    matrices: by the name of the layer, the float32 [outputs, inputs] that the library itself dequantises.
    packages: the writing library and all that decide what it writes.
    computes: whether the library has a computation of its own, in float32 or less, that runs on a CPU.
    """
    import numpy as np
    from safetensors.numpy import save_file

    logits, tokens = _answer(_dequantised(model, matrices))
    expected: dict[str, Any] = {
        "versions": {name: version(name) for name in (*packages, "transformers", "torch")},
        "written": datetime.now(UTC).date().isoformat(),
        "tokens": tokens,
    }
    if computes:
        own_logits, own_tokens = _answer(model)
        difference = float((own_logits - logits).abs().max() / logits.std())
        expected |= {"own tokens": own_tokens, "own largest difference": round(difference, 6)}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    products = {
        name: matrix.detach().cpu().double().numpy() @ probe(matrix.shape[1]) for name, matrix in matrices.items()
    }
    save_file({"logits": np.ascontiguousarray(logits.numpy()), **products}, folder / "expected.safetensors")
    for file in folder.iterdir():
        if file.name not in KEPT and file.suffix != ".safetensors":
            file.unlink()
    size = sum(file.stat().st_size for file in folder.iterdir())
    if size > MAX_BYTES:
        raise SystemExit(f"{folder}: {size} bytes; at most {MAX_BYTES} belong into the repository")


def _dequantised(model: Any, matrices: Mapping[str, Any]) -> Any:
    """The model in float32, with these matrices in place of its quantised layers."""
    import torch
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    with torch.no_grad():
        for name, own in plain.named_parameters():
            layer = name.removesuffix(".weight")
            own.copy_(matrices[layer] if layer in matrices else model.get_parameter(name))
    return plain


def _answer(model: Any) -> tuple[Any, list[int]]:
    """Logits of the prompt, float32 [tokens, vocabulary], and the greedy tokens after it."""
    import torch

    tokens = list(PROMPT)
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].float()
        for _ in range(NUM_TOKENS):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return logits, tokens[len(PROMPT) :]
