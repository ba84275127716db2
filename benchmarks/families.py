"""Decode of one request in the shape of a family, this engine against transformers, in turns in one process.

    python -m benchmarks.families [FAMILY ...] [--rounds 6]

Widths are those of the published model, or where these are not known the defaults of transformers, with fewer layers
and experts. Weights are random, in bfloat16.
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
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, DynamicCache, PreTrainedModel

from .model_impl import TOKENS, Engine

_KINDS = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
_WINDOWS = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]
_DENSE_FIRST = ["dense", "sparse", "sparse", "sparse"]
_SMALL: dict[str, Any] = {"num_hidden_layers": 4, "vocab_size": 32000, "pad_token_id": 0, "eos_token_id": 2}
_EIGHT = {**_SMALL, "num_hidden_layers": 8}
_EXPERTS = {"num_local_experts": 16, "n_group": 1, "topk_group": 1}
_ROUTED = {"n_routed_experts": 16, "n_group": 1, "topk_group": 1}
SHAPES: dict[str, dict[str, Any]] = {
    "kimi_linear": {**_SMALL, **_EXPERTS, "layer_types": _KINDS},
    "bailing_hybrid": {**_SMALL, **_EXPERTS, "layer_types": _KINDS},
    "olmo_hybrid": {**_SMALL, "layer_types": _KINDS},
    "lfm3": {**_SMALL, "layer_types": ["conv", "sliding_attention", "full_attention", "conv"]},
    "lfm2": {**_SMALL, "layer_types": ["conv", "conv", "full_attention", "conv"]},
    "lfm2_moe": {**_SMALL, "num_experts": 16, "layer_types": ["conv", "conv", "full_attention", "conv"]},
    "qwen3_next": {**_SMALL, "num_experts": 16, "layer_types": _KINDS},
    "qwen4_exp_text": {  # the sizes of its index are not published
        **_SMALL,
        "num_experts": 16,
        "layer_types": ["linear_attention", "linear_attention", "indexed_attention", "linear_attention"],
        "ple_layer_ids": [1],
        "ngram_vocab_size_base": 5000,
        "indexer_n_heads": 16,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 16,
    },
    "qwen3_vl_moe": {
        "text_config": {**_SMALL, "num_experts": 16},
        "vision_config": {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2},
    },
    "mimo_v2_flash": {**_SMALL, "n_routed_experts": 8, "layer_types": _WINDOWS, "mlp_layer_types": _DENSE_FIRST},
    "exaone_moe": {**_SMALL, "num_experts": 16, "n_group": 1, "topk_group": 1, "layer_types": _WINDOWS},
    "cohere2_moe": {**_SMALL, "hidden_size": 4096, "intermediate_size": 1024, "num_attention_heads": 32},
    "minimax": {
        **_SMALL,
        "num_hidden_layers": 2,
        "hidden_size": 6144,
        "intermediate_size": 9216,
        "num_attention_heads": 64,
        "head_dim": 128,
        "num_local_experts": 3,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "minimax_m2": {**_SMALL, "num_local_experts": 16},
    "phimoe": {**_SMALL, "num_local_experts": 4},
    "mellum": {**_SMALL, "num_experts": 16, "layer_types": _WINDOWS, "mlp_layer_types": _DENSE_FIRST},
    "solar_open": {**_SMALL, **_ROUTED},
    "flex_olmo": {**_SMALL, "num_hidden_layers": 2, "num_experts": 5},
    "granitemoeshared": {**_SMALL, "num_hidden_layers": 2, "num_local_experts": 4, "shared_intermediate_size": 1024},
    "granite_swa": dict(_EIGHT),
    "granitemoe_swa": {**_SMALL, "num_hidden_layers": 2, "num_local_experts": 4},
    "deepseek_v4": {**_SMALL, "n_routed_experts": 8, "compress_ratios": [0, 4, 128, 4], "num_hash_layers": 1},
    "deepseek_v32": {**_SMALL, **_ROUTED, "num_hidden_layers": 2, "mlp_layer_types": ["dense", "sparse"]},
    "glm_moe_dsa": {**_SMALL, **_ROUTED, "num_hidden_layers": 2, "mlp_layer_types": ["dense", "sparse"]},
    "dots3_note_text": {
        **_SMALL,
        "num_hidden_layers": 3,
        "n_routed_experts": 10,
        "layer_types": ["indexed_attention", "sliding_attention", "sliding_attention"],
    },
    "hy_v4": {**_SMALL, **_ROUTED},
    "axk2": {**_SMALL, **_ROUTED},
    "youtu": dict(_EIGHT),
    "minicpm3": dict(_EIGHT),
    "diffllama": dict(_SMALL),
    "helium": dict(_EIGHT),
    "arcee": dict(_SMALL),
    "jais2": dict(_SMALL),
    "ministral": {**_SMALL, "head_dim": 128},
    "cwm": {**_SMALL, "num_hidden_layers": 2},
    "hyperclovax": dict(_SMALL),
    "vaultgemma": dict(_EIGHT),
    "gemma3n_text": {**_SMALL, "num_hidden_layers": 10, "num_kv_shared_layers": 5, "vocab_size_per_layer_input": 32000},
    "xglm": {**_EIGHT, "pad_token_id": 1},
    "gpt_neo": {**_EIGHT, "attention_types": [[["global", "local"], 4]]},
    "mpt": dict(_EIGHT),
    "codegen": dict(_SMALL),
    "mamba": {**_SMALL, "hidden_size": 2560, "num_hidden_layers": 8},
    "mamba2": {**_SMALL, "num_hidden_layers": 8},
    "falcon_mamba": {**_SMALL, "hidden_size": 4096, "intermediate_size": 8192, "num_hidden_layers": 8},
    "jamba": {**_SMALL, "intermediate_size": 4096, "num_experts": 4, "attn_layer_period": 4, "attn_layer_offset": 2},
    "zamba": {**_SMALL, "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"]},
    "zamba2": {
        **_EIGHT,
        "layers_block_type": ["linear_attention", "linear_attention", "linear_attention", "hybrid"] * 2,
    },
    "recurrent_gemma": {**_SMALL, "num_hidden_layers": 6},
}
_OF_THE_LIBRARY = {"gemma3n_text"}  # families that the engine runs on the modules of transformers
_RETURNS_NO_CACHE = {"recurrent_gemma"}  # so the class gets one


def build(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SHAPES[family])
    kind = AutoModelForImageTextToText if "text_config" in SHAPES[family] else AutoModelForCausalLM
    model: PreTrainedModel = kind.from_config(config, dtype=torch.bfloat16)
    return model.eval()


@torch.inference_mode()
def their_steps(model: PreTrainedModel) -> Iterator[float]:
    """Seconds of each step of one request after its first token."""
    cache = DynamicCache(config=model.config) if model.config.model_type in _RETURNS_NO_CACHE else None
    found = model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=True, cache=cache)
    cache = found.cache if cache is None else cache
    for _ in range(TOKENS - 1):
        token = found.logits[:, -1:].argmax(-1)
        began = time.perf_counter()
        found = model(input_ids=token, cache=cache, use_cache=True)
        yield time.perf_counter() - began


def compare(family: str, rounds: int) -> str:
    model = build(family)
    with tempfile.TemporaryDirectory() as folder:
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)  # the engine makes weights of its own
        engine = Engine(Path(folder), "transformers" if family in _OF_THE_LIBRARY else "native")
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
