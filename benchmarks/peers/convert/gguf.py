"""Converts a checkpoint to GGUF with llama.cpp's Python library.

    python -m benchmarks.peers.convert.gguf CHECKPOINT FILE bf16|q8_0|q4_0|q4_k_m

Every matrix gets the same type, including the embedding, which is also the output layer. Norms, biases and routers stay
float32. A mixture such as q4_k_m is what llama.cpp makes of the bf16 file.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, RopeScalingType, TokenType, quants

OUTER = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}
_WITH_FOUR_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@dataclass(frozen=True)
class Architecture:
    """name: of llama.cpp. norm_offset: what a stored norm's weight lacks. inner: names that differ from INNER."""

    name: str
    norm_offset: float = 0.0
    inner: dict[str, str] = field(default_factory=dict)


ARCHITECTURES = {
    "qwen3": Architecture("qwen3"),
    "qwen3_moe": Architecture("qwen3moe"),
    "gemma3_text": Architecture("gemma3", norm_offset=1.0, inner=_WITH_FOUR_NORMS),
    "gpt_oss": Architecture(
        "gpt-oss",
        inner={
            "post_attention_layernorm": "post_attention_norm",
            "self_attn.sinks": "attn_sinks",
            "mlp.router": "ffn_gate_inp",
        },
    ),
}
ROUTER = "ffn_gate_inp"


def stored_tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Names and float32 values of a safetensors file in bfloat16, a type that numpy does not have."""
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    start = 8 + int(raw[:8].view(np.uint64)[0])
    for name, entry in json.loads(bytes(raw[8:start])).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16", (name, entry["dtype"])
        first, last = entry["data_offsets"]
        halves = np.frombuffer(raw[start + first : start + last], dtype=np.uint16)
        yield name.removesuffix(".weight"), (halves.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])


def split_experts(prefix: str, part: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """gpt-oss: matrices of all experts as [experts, in, out], the columns of gates and ups in turns."""
    part, bias = part.removesuffix("_bias"), ".bias" if part.endswith("_bias") else ""
    values = values if bias else values.swapaxes(1, 2)
    if part == "gate_up_proj":
        yield f"{prefix}.gate_proj{bias}", values[:, 0::2]
        yield f"{prefix}.up_proj{bias}", values[:, 1::2]
    else:
        yield f"{prefix}.{part}{bias}", values


def tensors(checkpoint: Path, num_experts: int) -> Iterator[tuple[str, np.ndarray]]:
    """The matrices of a layer's experts as one tensor, [experts, out, in], as soon as all of them were read."""
    experts: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    for path in sorted(checkpoint.glob("*.safetensors")):
        for name, values in stored_tensors(path):
            if stacked := re.fullmatch(r"(.*\.experts)\.(\w+)", name):
                yield from split_experts(*stacked.groups(), values)
                continue
            found = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)", name)
            if found is None:
                yield name, values
                continue
            prefix, number, part = found.groups()
            together = experts[f"{prefix}.{part}"]
            together[int(number)] = values
            if len(together) == num_experts:
                yield f"{prefix}.{part}", np.stack([together.pop(each) for each in range(num_experts)])


def name_in_gguf(name: str, inner: dict[str, str]) -> str:
    if name in OUTER:
        return f"{OUTER[name]}.weight"
    _, _, layer, part = name.split(".", 3)
    kind = "bias" if part.endswith(".bias") else "weight"
    return f"blk.{layer}.{inner[part.removesuffix('.bias')]}.{kind}"


def write_tokenizer(writer: GGUFWriter, checkpoint: Path) -> None:
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ids = {**tokenizer["model"]["vocab"], **special}
    tokens = sorted(ids, key=ids.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_add_bos_token(False)


def write(checkpoint: Path, target: Path, kind: str) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    inner = INNER | architecture.inner
    num_experts = config.get("num_experts") or config.get("num_local_experts", 0)
    rope = config.get("rope_parameters") or config
    quant = GGMLQuantizationType[kind.upper()]
    writer = GGUFWriter(target, architecture.name, use_temp_file=True)  # the tensors are not held in memory
    writer.add_name(checkpoint.name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if num_experts:
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config.get("moe_intermediate_size", config["intermediate_size"]))
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_file_type(LlamaFileType[f"MOSTLY_{kind.upper()}"])
    write_tokenizer(writer, checkpoint)
    for name, values in tensors(checkpoint, num_experts):
        if name == "lm_head" and config["tie_word_embeddings"]:
            continue
        own = name_in_gguf(name, inner)
        if own.endswith("norm.weight"):
            writer.add_tensor(own, values + np.float32(architecture.norm_offset))
        elif values.ndim == 1 or own.endswith(".bias") or ROUTER in own:
            writer.add_tensor(own, np.ascontiguousarray(values))
        else:
            writer.add_tensor(own, quants.quantize(np.ascontiguousarray(values), quant), raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_mixture(checkpoint: Path, target: Path, kind: str) -> None:
    import llama_cpp

    plain = target.with_suffix(".bf16")
    write(checkpoint, plain, "bf16")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    if llama_cpp.llama_model_quantize(str(plain).encode(), str(target).encode(), params):
        raise SystemExit(f"llama.cpp cannot make {kind}")
    plain.unlink()


if __name__ == "__main__":
    kind = sys.argv[3]
    is_mixture = kind.upper() not in GGMLQuantizationType.__members__
    (write_mixture if is_mixture else write)(Path(sys.argv[1]), Path(sys.argv[2]), kind)
