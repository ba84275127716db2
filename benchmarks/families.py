"""Decode of one request in the shape of a family, this engine against transformers, in turns in one process.

    python -m benchmarks.families [FAMILY ...] [--rounds 6]

Widths are those of the published model, with fewer layers and experts. Weights are random, in bfloat16, and the same.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in the engine; read when torch is loaded

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from .model_impl import TOKENS, Engine

_KINDS = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
_WINDOWS = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]
_DENSE_FIRST = ["dense", "sparse", "sparse", "sparse"]
_SMALL: dict[str, Any] = {"num_hidden_layers": 4, "vocab_size": 32000, "pad_token_id": 0, "eos_token_id": 2}
_EXPERTS = {"num_local_experts": 16, "n_group": 1, "topk_group": 1}
SHAPES: dict[str, dict[str, Any]] = {
    "kimi_linear": {**_SMALL, **_EXPERTS, "layer_types": _KINDS},
    "bailing_hybrid": {**_SMALL, **_EXPERTS, "layer_types": _KINDS},
    "olmo_hybrid": {**_SMALL, "layer_types": _KINDS},
    "lfm3": {**_SMALL, "layer_types": ["conv", "sliding_attention", "full_attention", "conv"]},
    "qwen3_next": {**_SMALL, "num_experts": 16, "layer_types": _KINDS},
    "mimo_v2_flash": {**_SMALL, "n_routed_experts": 16, "layer_types": _WINDOWS, "mlp_layer_types": _DENSE_FIRST},
    "cohere2_moe": {**_SMALL, "hidden_size": 4096, "intermediate_size": 1024, "num_attention_heads": 32},
    "diffllama": dict(_SMALL),
    "deepseek_v4": {**_SMALL, "n_routed_experts": 16, "compress_ratios": [0, 4, 128, 4], "num_hash_layers": 1},
    "mamba": {**_SMALL, "hidden_size": 2560, "num_hidden_layers": 8},
    "falcon_mamba": {**_SMALL, "hidden_size": 4096, "intermediate_size": 8192, "num_hidden_layers": 8},
    "jamba": {**_SMALL, "intermediate_size": 4096, "num_experts": 4, "attn_layer_period": 4, "attn_layer_offset": 2},
}


def build(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SHAPES[family])
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval()


@torch.inference_mode()
def their_steps(model: PreTrainedModel) -> Iterator[float]:
    """Seconds of each step of one request after its first token."""
    found = model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=True)
    for _ in range(TOKENS - 1):
        token = found.logits[:, -1:].argmax(-1)
        began = time.perf_counter()
        found = model(input_ids=token, cache=found.cache, use_cache=True)
        yield time.perf_counter() - began


def compare(family: str, rounds: int) -> str:
    model = build(family)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        engine = Engine(Path(folder), "native")
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(rounds):
            ours += engine.decode()
            theirs += list(their_steps(model))[1:]
    ratios = [statistics.median(theirs) / statistics.median(ours), min(theirs) / min(ours)]
    millis = [f"{1e3 * value:.1f}" for value in (statistics.median(ours), statistics.median(theirs))]
    return f"| {family} | {millis[0]} | {millis[1]} | {ratios[0]:.2f} | {ratios[1]:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(SHAPES)}; by default all")
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    print("| family | ms per step | of transformers | ratio of medians | of the fastest |\n|---|---|---|---|---|")
    for family in arguments.families or SHAPES:
        print(compare(family, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
