"""A checkpoint of transformers as a GGUF file, named and arranged as by llama.cpp's converter, in any of its types."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file

from stoker.config.checkpoint.stored import BLOCKS

_NAMES = {
    "model.embed_tokens.": "token_embd.",
    "lm_head.": "output.",
    "model.norm.": "output_norm.",
    "model.layers.": "blk.",
    "self_attn.q_proj.": "attn_q.",
    "self_attn.k_proj.": "attn_k.",
    "self_attn.v_proj.": "attn_v.",
    "self_attn.qkv_proj.": "attn_qkv.",
    "self_attn.o_proj.": "attn_output.",
    "self_attn.q_norm.": "attn_q_norm.",
    "self_attn.k_norm.": "attn_k_norm.",
    "input_layernorm.": "attn_norm.",
    "mlp.gate.": "ffn_gate_inp.",
    "mlp.experts.gate_proj": "ffn_gate_exps.weight",
    "mlp.experts.up_proj": "ffn_up_exps.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.gate_proj.": "ffn_gate.",
    "mlp.up_proj.": "ffn_up.",
    "mlp.gate_up_proj.": "ffn_up.",
    "mlp.down_proj.": "ffn_down.",
}
_ONE_NORM = {"post_attention_layernorm.": "ffn_norm."}
_BOTH_NORMS = {
    "post_attention_layernorm.": "post_attention_norm.",
    "pre_feedforward_layernorm.": "ffn_norm.",
    "post_feedforward_layernorm.": "post_ffw_norm.",
}
_ARCHITECTURES = {"mistral": "llama", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}
_SCALES: dict[str, tuple[int, ...]] = {  # bytes of a block in which numbers in float16 begin
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


def write_gguf(
    source: Path, folder: Path, dtype: str = "F32", *, max_tensors: int = 0, **values: Any
) -> tuple[Path, Path]:
    """The GGUF file, and a checkpoint of transformers with the same weights.

    dtype: of all matrices. max_tensors: in each of several files; 0 for one file. values: further keys of the header.
    """
    config, tensors = json.loads((source / "config.json").read_text()), load_file(source / "model.safetensors")
    name = _ARCHITECTURES.get(config["model_type"], config["model_type"])
    plain, stored = folder / "plain", folder / "model.gguf"
    plain.mkdir(parents=True)
    shutil.copy(source / "config.json", plain)
    writer = GGUFWriter(stored, name, split_max_tensors=max_tensors)
    for key, value in {**header(config), **values}.items():
        if value is not None:
            write_value(
                writer, key if "." in key and key.split(".")[0] in ("tokenizer", "general") else f"{name}.{key}", value
            )
    for factors, key in (("rope_factors_short", "short_factor"), ("rope_factors_long", "long_factor")):
        if config["rope_parameters"].get(key):
            writer.add_tensor(f"{factors}.weight", np.array(config["rope_parameters"][key], np.float32))
    if config["rope_parameters"].get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(config))
    has_pairs, has_whole_norms = name in ("llama", "granite"), name.startswith("gemma")
    changed: dict[str, torch.Tensor] = {}
    generator = np.random.default_rng(7)
    for key, part in _with_whole_experts(tensors).items():
        array = part.float().numpy()
        if has_pairs and (".q_proj." in key or ".k_proj." in key):
            array = _paired(array, config["num_key_value_heads" if ".k_proj." in key else "num_attention_heads"])
        if has_whole_norms and key.endswith("norm.weight"):
            array = array + 1
        if array.ndim < 2 or dtype == "F32" or key.endswith("mlp.gate.weight"):
            writer.add_tensor(_named(key, has_whole_norms), np.ascontiguousarray(array, np.float32))
            _keep(changed, key, part)
            continue
        kind = GGMLQuantizationType[dtype]
        blocks = _random_blocks(array.shape, dtype, generator) if dtype in _SCALES else quantize(array, kind)
        writer.add_tensor(_named(key, has_whole_norms), blocks, raw_dtype=kind)
        numbers = dequantize(blocks, kind).reshape(array.shape)
        if has_pairs and (".q_proj." in key or ".k_proj." in key):
            numbers = _halved(numbers, config["num_key_value_heads" if ".k_proj." in key else "num_attention_heads"])
        _keep(changed, key, torch.from_numpy(np.ascontiguousarray(numbers, np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(changed, plain / "model.safetensors", metadata={"format": "pt"})
    return next(iter(sorted(folder.glob("*.gguf")))), plain


def header(config: dict[str, Any]) -> dict[str, Any]:
    """Keys of the architecture, for a config.json as transformers 5 writes it."""
    rope = config["rope_parameters"]
    local = rope.get("sliding_attention") or {}
    rope = rope.get("full_attention") or rope
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    name = config["model_type"]
    found: dict[str, Any] = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1)),
        "vocab_size": config["vocab_size"],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }
    if rope["rope_type"] in ("linear", "yarn"):
        found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    if rope["rope_type"] in ("yarn", "longrope"):
        trained = rope.get("original_max_position_embeddings") or config["original_max_position_embeddings"]
        found["rope.scaling.original_context_length"] = trained
    if rope["rope_type"] == "longrope" and config["max_position_embeddings"] > trained:
        scale = config["max_position_embeddings"] / trained
        found["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(scale) / math.log(trained))
    if name in ("gemma2", "gemma3_text"):
        found["attention.scale"] = config["query_pre_attn_scalar"] ** -0.5
        found["attn_logit_softcapping"] = config.get("attn_logit_softcapping")
        found["final_logit_softcapping"] = config.get("final_logit_softcapping")
    if name in ("gemma2", "gemma3_text", "phi3"):
        found["attention.sliding_window"] = config["sliding_window"]
    if name == "gemma3_text":
        found["rope.freq_base_swa"] = float(local["rope_theta"])
        found["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in config["layer_types"]]
    if name == "granite":
        found |= {
            "embedding_scale": config["embedding_multiplier"],
            "residual_scale": config["residual_multiplier"],
            "attention.scale": config["attention_multiplier"],
            "logit_scale": config["logits_scaling"],
        }
    if name == "qwen3_moe":
        found |= {
            "expert_count": config.get("num_experts") or config["num_local_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
        }
    return found


def vocabulary(folder: Path, pre: str) -> dict[str, Any]:
    """Keys of a byte-level vocabulary, for `write_gguf`."""
    content = json.loads((folder / "tokenizer.json").read_text())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    ids = {**content["model"]["vocab"], **added}
    tokens = sorted(ids, key=lambda token: ids[token])
    template = folder / "chat_template.jinja"
    named = {"eos_token_id": config.get("eos_token"), "bos_token_id": config.get("bos_token")}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in added else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in content["model"]["merges"]],
        "tokenizer.chat_template": template.read_text() if template.is_file() else None,
        **{f"tokenizer.ggml.{key}": ids[token] for key, token in named.items() if token},
    }


def write_value(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, list(value))


def _named(key: str, has_both_norms: bool) -> str:
    for old, new in {**(_BOTH_NORMS if has_both_norms else _ONE_NORM), **_NAMES}.items():
        key = key.replace(old, new)
    return key


def _with_whole_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The experts' matrices as one tensor of each kind."""
    found: dict[str, torch.Tensor] = {}
    parts: dict[str, list[torch.Tensor]] = {}
    for key in sorted(tensors, key=lambda key: [int(part) if part.isdecimal() else part for part in key.split(".")]):
        if ".experts." not in key:
            found[key] = tensors[key]
            continue
        place, _, rest = key.partition(".experts.")
        parts.setdefault(f"{place}.experts.{rest.split('.')[1]}", []).append(tensors[key])
    return found | {key: torch.stack(each) for key, each in parts.items()}


def _keep(changed: dict[str, torch.Tensor], key: str, tensor: torch.Tensor) -> None:
    if not key.endswith(("experts.gate_proj", "experts.up_proj", "experts.down_proj")):
        changed[key] = tensor.contiguous()
        return
    place, _, name = key.rpartition(".")
    for index, expert in enumerate(tensor):
        changed[f"{place}.{index}.{name}.weight"] = expert.contiguous()


def _paired(array: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of heads: from the two halves of a rotated pair to neighbours, as the converter's `permute`."""
    return array.reshape(num_heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _halved(array: np.ndarray, num_heads: int) -> np.ndarray:
    return array.reshape(num_heads, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _random_blocks(shape: tuple[int, ...], dtype: str, generator: np.random.Generator) -> np.ndarray:
    """Blocks of a type that the library cannot write: any bytes, with scales that make weights of a usual size."""
    elements, size = BLOCKS[dtype]
    blocks = generator.integers(0, 256, (math.prod(shape) // elements, size), dtype=np.uint8)
    for at in _SCALES[dtype]:
        scales = generator.uniform(0.5e-4, 2e-4, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(*shape[:-1], -1)


def _llama3_factors(config: dict[str, Any]) -> np.ndarray:
    """As the converter computes them."""
    rope = config["rope_parameters"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    frequencies = 1.0 / rope["rope_theta"] ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    low, high, trained = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    factors = []
    for wavelength in 2 * math.pi / frequencies:
        if wavelength < trained / high:
            factors.append(1.0)
        elif wavelength > trained / low:
            factors.append(rope["factor"])
        else:
            smooth = (trained / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)
