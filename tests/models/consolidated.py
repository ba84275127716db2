"""A checkpoint of transformers in Mistral AI's own format: params.json and consolidated safetensors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

_NAMES = (
    (r"model\.embed_tokens\.(.*)", r"tok_embeddings.\1"),
    (r"lm_head\.(.*)", r"output.\1"),
    (r"model\.norm\.(.*)", r"norm.\1"),
    (r"model\.(layers\.\d+)\.input_layernorm\.(.*)", r"\1.attention_norm.\2"),
    (r"model\.(layers\.\d+)\.post_attention_layernorm\.(.*)", r"\1.ffn_norm.\2"),
    (r"model\.(layers\.\d+)\.self_attn\.([qkvo])_proj\.(.*)", r"\1.attention.w\2.\3"),
    (r"model\.(layers\.\d+)\.mlp\.gate_proj\.(.*)", r"\1.feed_forward.w1.\2"),
    (r"model\.(layers\.\d+)\.mlp\.down_proj\.(.*)", r"\1.feed_forward.w2.\2"),
    (r"model\.(layers\.\d+)\.mlp\.up_proj\.(.*)", r"\1.feed_forward.w3.\2"),
    (r"model\.(layers\.\d+)\.block_sparse_moe\.(.*)", r"\1.feed_forward.\2"),
)


def write_consolidated(source: Path, folder: Path, num_files: int = 1, **extra: torch.Tensor) -> Path:
    """num_files: more than one have an index. extra: further tensors."""
    config, tensors = json.loads((source / "config.json").read_text()), load_file(source / "model.safetensors")
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    written = {**extra, **dict(_converted(name, tensor, head_dim) for name, tensor in tensors.items())}
    folder.mkdir()
    (folder / "params.json").write_text(json.dumps(params(config)))
    names = sorted(written)
    files = [f"consolidated-{index + 1:05}-of-{num_files:05}.safetensors" for index in range(num_files)]
    if num_files == 1:
        files = ["consolidated.safetensors"]
    else:
        table = {name: files[index % num_files] for index, name in enumerate(names)}
        (folder / "consolidated.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    for index, file in enumerate(files):
        save_file({name: written[name] for name in names[index::num_files]}, folder / file)
    return folder


def _converted(name: str, tensor: torch.Tensor, head_dim: int) -> tuple[str, torch.Tensor]:
    """transformers rotates the elements i and i + head_dim / 2 together, Mistral AI's code 2 i and 2 i + 1."""
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = tensor.view(-1, 2, head_dim // 2, tensor.shape[1])
        tensor = heads.transpose(1, 2).reshape(tensor.shape)
    for old, new in _NAMES:
        if re.fullmatch(old, name):
            return re.sub(old, new, name), tensor.contiguous()
    raise AssertionError(name)


def params(config: dict[str, Any]) -> dict[str, Any]:
    """Of a config.json as transformers 5 writes it."""
    rope = config["rope_parameters"]
    written = {
        "dim": config["hidden_size"],
        "n_layers": config["num_hidden_layers"],
        "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"],
        "head_dim": config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        "hidden_dim": config["intermediate_size"],
        "norm_eps": config["rms_norm_eps"],
        "vocab_size": config["vocab_size"],
        "rope_theta": rope["rope_theta"],
        "max_seq_len": config["max_position_embeddings"],
        "tied_embeddings": config["tie_word_embeddings"],
    }
    if config.get("sliding_window") is not None:
        written["sliding_window"] = config["sliding_window"]
    if "num_local_experts" in config:
        per_token, count = config["num_experts_per_tok"], config["num_local_experts"]
        written["moe"] = {"num_experts_per_tok": per_token, "num_experts": count}
    trained = rope.get("original_max_position_embeddings")
    if rope["rope_type"] == "yarn":
        slopes = {"beta": rope.get("beta_fast", 32), "alpha": rope.get("beta_slow", 1)}
        yarn = {"factor": rope["factor"], "original_max_position_embeddings": trained, **slopes}
        written["yarn"] = {**yarn, "apply_scale": rope.get("mscale") is None}
    if "llama_4_scaling_beta" in rope:
        growth = {"original_max_position_embeddings": trained, "beta": rope["llama_4_scaling_beta"]}
        written["llama_4_scaling"] = growth
    return written
