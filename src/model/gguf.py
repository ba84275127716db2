"""The keys of a GGUF header as the config.json of the same model, and the names of its tensors.

Every key of the architecture is either translated or known to change nothing: an unknown one could change what the
model computes. Names and conventions come from llama.cpp, whose converter writes such files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .config_json import ConfigJson, ModelConfigError, shown

_MAX_SCALE = 1e6
_MAX_FACTOR = 1e6
_KEYS = {  # key of config.json -> key of the header, after the name of the architecture
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
}
_NO_EFFECT = {  # on what the model computes, or on that of the architectures below
    *("vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "attention.causal", "pooling_type"),
    *("use_parallel_residual", "expert_group_count", "expert_group_used_count"),
}
_NAMES = {
    "^token_embd.": "model.embed_tokens.",
    "^output_norm.": "model.norm.",
    "^output.": "lm_head.",
    "^blk.": "model.layers.",
    ".attn_norm.": ".input_layernorm.",
    ".attn_qkv.": ".self_attn.qkv_proj.",
    ".attn_q.": ".self_attn.q_proj.",
    ".attn_k.": ".self_attn.k_proj.",
    ".attn_v.": ".self_attn.v_proj.",
    ".attn_output.": ".self_attn.o_proj.",
    ".attn_q_norm.": ".self_attn.q_norm.",
    ".attn_k_norm.": ".self_attn.k_norm.",
    ".ffn_norm.": ".post_attention_layernorm.",
    ".ffn_gate_inp.": ".mlp.gate.",
    ".ffn_gate_exps.weight": ".mlp.experts.gate_proj",
    ".ffn_up_exps.weight": ".mlp.experts.up_proj",
    ".ffn_down_exps.weight": ".mlp.experts.down_proj",
    ".ffn_gate.": ".mlp.gate_proj.",
    ".ffn_up.": ".mlp.up_proj.",
    ".ffn_down.": ".mlp.down_proj.",
}
_BOTH_NORMS = {  # norms before and after each part
    ".post_attention_norm.": ".post_attention_layernorm.",
    ".ffn_norm.": ".pre_feedforward_layernorm.",
    ".post_ffw_norm.": ".post_feedforward_layernorm.",
}
_ENDS = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
# Many files name only one token that ends an answer; llama.cpp finds the others by their names too
_END_TOKENS = {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"}
_CONTROL = 3  # kind of a token
FREQUENCIES = "rope_freqs.weight"  # divisors of the frequencies of the rotary embedding
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
FACTORS = (FREQUENCIES, LONG, SHORT)  # small tensors that are part of the description


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture of llama.cpp.

    has_pairs: rows of queries and keys are in another order than transformers': neighbours are rotated together.
    has_whole_norms: 1 has been added to the weights of its norms.
    wide_at: number of layers of its largest model, in which the scale of attention is an average head's.
    """

    family: str  # the class in config.json
    family_with_experts: str | None = None
    names: Mapping[str, str] = field(default_factory=lambda: _NAMES)
    has_pairs: bool = False
    has_whole_norms: bool = False
    wide_at: int | None = None

    def written_name(self, name: str) -> str:
        """Name in the file of a tensor of the model."""
        for own, other in self.names.items():
            if own.startswith("^"):
                name = own[1:] + name.removeprefix(other) if name.startswith(other) else name
            else:
                name = name.replace(other, own, 1)
        return name


_GEMMA: dict[str, Any] = {"names": _NAMES | _BOTH_NORMS, "has_whole_norms": True}
ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "MixtralForCausalLM", has_pairs=True),
    "granite": Architecture("GraniteForCausalLM", has_pairs=True),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen3": Architecture("Qwen3ForCausalLM"),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", "Qwen3MoeForCausalLM"),
    "phi3": Architecture("Phi3ForCausalLM", names=_NAMES | {".ffn_up.": ".mlp.gate_up_proj."}),
    "gemma2": Architecture("Gemma2ForCausalLM", wide_at=46, **_GEMMA),
    "gemma3": Architecture("Gemma3ForCausalLM", wide_at=62, **_GEMMA),
}


def names_of(family: str) -> Mapping[str, str]:
    """Parts of the names in files of a family -> names in tensors.py."""
    return next(found.names for found in ARCHITECTURES.values() if family in (found.family, found.family_with_experts))


def architecture(values: Mapping[str, Any]) -> Architecture:
    """Raises ModelConfigError for one that cannot be read."""
    name = values.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ModelConfigError(
            f"`general.architecture` is {shown(name)}; GGUF files of {', '.join(ARCHITECTURES)} are read, other "
            "models as safetensors",
            "M304",
        )
    if values.get("general.type", "model") != "model":
        raise ModelConfigError(f"`general.type` is {shown(values['general.type'])}; supported: 'model'", "M304")
    return ARCHITECTURES[name]


def config_of(
    values: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, Sequence[float]],
) -> dict[str, Any]:
    """The content of config.json.

    Args:
        values: of the header.
        shapes: of the tensors in the files, by their names there.
        factors: elements of the tensors in FACTORS that the files have.

    Raises ModelConfigError for a value that is missing or invalid, and for a key with an unknown meaning.
    """
    found = architecture(values)
    prefix = f"{values['general.architecture']}."
    own = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    read = ConfigJson(own, own_keys=_KEYS)
    heads = read.count("num_attention_heads")
    head_dim = read.count("attention.key_length", read.count("hidden_size") // heads or None)
    num_experts = read.get("expert_count") or 0
    family = found.family if not num_experts else found.family_with_experts
    if family is None:
        raise ModelConfigError(f"`{prefix}expert_count` is {shown(num_experts)}; this architecture has none", "M304")
    if read.count("attention.value_length", head_dim) != head_dim:
        raise ModelConfigError(f"`{prefix}attention.value_length` is not `{prefix}attention.key_length`", "M304")
    config: dict[str, Any] = {
        **{key: read.count(key) for key in _KEYS if key not in ("num_key_value_heads", "intermediate_size")},
        "architectures": [family],
        "num_key_value_heads": read.count("num_key_value_heads", heads),
        "head_dim": head_dim,
        "vocab_size": shapes.get("token_embd.weight", (0,))[0],
        "rms_norm_eps": read.number("attention.layer_norm_rms_epsilon", 0, 1),
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "mlp_bias": "blk.0.ffn_up.bias" in shapes,
        **_token_ids(values),
    }
    config["intermediate_size"] = read.count("intermediate_size", read.count("expert_feed_forward_length", 1))
    if num_experts:
        config |= _experts(read)
    config |= _rope(read, config, factors)
    config |= _of_family(read, config, found, prefix.removesuffix("."))
    unknown = sorted(key for key in own if key not in read.read and key not in _NO_EFFECT)
    if unknown:
        names = ", ".join(f"`{prefix}{shown(key)[1:-1]}`" for key in unknown[:5])
        raise ModelConfigError(
            f"{names}: unknown, so this build cannot compute what the model does; safetensors of the same model can "
            "be served",
            "M304",
        )
    return config


def _experts(read: ConfigJson) -> dict[str, Any]:
    width = read.count("expert_feed_forward_length", read.count("intermediate_size", 1))
    count = read.count("expert_count")
    for key in ("expert_gating_func", "expert_weights_scale"):
        if (value := read.get(key)) not in (None, 1):
            raise ModelConfigError(f"`{key}` is {shown(value)}; supported: 1", "M304")
    return {
        "norm_topk_prob": read.flag("expert_weights_norm", True),
        "num_experts": count,
        "num_local_experts": count,
        "num_experts_per_tok": read.count("expert_used_count"),
        "moe_intermediate_size": width,
    }


def _rope(read: ConfigJson, config: Mapping[str, Any], factors: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    head_dim, longest = config["head_dim"], config["max_position_embeddings"]
    rotated = read.count("rope.dimension_count", head_dim)
    if rotated > head_dim:
        raise ModelConfigError(f"`rope.dimension_count` is {rotated}; a head has {head_dim} elements")
    theta = read.number("rope.freq_base", 1, 1e15, 10_000.0)
    factor = read.number("rope.scaling.factor", 0, _MAX_FACTOR, 1.0)
    kind, trained = read.get("rope.scaling.type"), read.count("rope.scaling.original_context_length", longest)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    scale = read.number("rope.scaling.attn_factor", 0, 1e3, 1.0)
    if FREQUENCIES in factors:  # such as the rope type llama3, whatever its parameters were
        found = list(factors[FREQUENCIES])
        rope |= {"rope_type": "longrope", "short_factor": found, "long_factor": found, "attention_factor": scale}
    elif LONG in factors or SHORT in factors:
        if not (LONG in factors and SHORT in factors):
            raise ModelConfigError(f"the files have one of `{LONG}` and `{SHORT}`, not both")
        short, long = list(factors[SHORT]), list(factors[LONG])
        rope |= {"rope_type": "longrope", "short_factor": short, "long_factor": long, "attention_factor": scale}
        rope["original_max_position_embeddings"] = trained
    elif kind == "linear":
        rope |= {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        rope |= {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": trained,
            "beta_fast": read.number("rope.scaling.yarn_beta_fast", 0, _MAX_FACTOR, 32.0),
            "beta_slow": read.number("rope.scaling.yarn_beta_slow", 0, _MAX_FACTOR, 1.0),
            "attention_factor": scale * (1 + 0.1 * math.log(max(factor, 1))),
        }
    elif kind not in (None, "none"):
        raise ModelConfigError(
            f"`rope.scaling.type` is {shown(kind)} and the files have no `{LONG}`; supported: none, linear, yarn",
            "M304",
        )
    if rotated != head_dim:
        rope["partial_rotary_factor"] = rotated / head_dim
    return {"rope_parameters": rope}


def _of_family(read: ConfigJson, config: Mapping[str, Any], found: Architecture, name: str) -> dict[str, Any]:
    """Keys that only some families have."""
    own: dict[str, Any] = {}
    if name in ("gemma2", "gemma3", "phi3"):
        own["sliding_window"] = read.count("attention.sliding_window") if read.get("attention.sliding_window") else None
    if name == "granite":
        own["embedding_multiplier"] = read.number("embedding_scale", 0, _MAX_SCALE, 1.0)
        own["residual_multiplier"] = read.number("residual_scale", 0, _MAX_SCALE, 1.0)
        own["attention_multiplier"] = read.number("attention.scale", 0, _MAX_SCALE, config["head_dim"] ** -0.5)
        own["logits_scaling"] = read.number("logit_scale", 0, _MAX_SCALE, 1.0)
    if found.wide_at is not None:
        is_wide = config["num_hidden_layers"] == found.wide_at
        per_head = config["hidden_size"] / config["num_attention_heads"] if is_wide else config["head_dim"]
        own["query_pre_attn_scalar"] = read.number("attention.scale", 0, _MAX_SCALE, per_head**-0.5) ** -2
        own["attn_logit_softcapping"] = read.get("attn_logit_softcapping")
        own["final_logit_softcapping"] = read.get("final_logit_softcapping")
    if name == "gemma3":
        local = {"rope_type": "default", "rope_theta": read.number("rope.freq_base_swa", 1, 1e15, 10_000.0)}
        full = config["rope_parameters"]
        own["rope_parameters"] = {"full_attention": full, "sliding_attention": local}
        own["layer_types"] = _layer_types(read, config["num_hidden_layers"])
    return own


def _layer_types(read: ConfigJson, num_layers: int) -> list[str]:
    """The pattern is a flag for each layer, or the period in which one layer sees everything."""
    pattern = read.get("attention.sliding_window_pattern")
    if pattern is None or isinstance(pattern, int):
        period = read.count("attention.sliding_window_pattern", 6)
        flags: Iterable[Any] = (layer % period for layer in range(1, num_layers + 1))
    elif len(pattern) == num_layers:
        flags = pattern
    else:
        raise ModelConfigError(f"`attention.sliding_window_pattern` must have a value for each of {num_layers} layers")
    return ["sliding_attention" if flag else "full_attention" for flag in flags]


def _token_ids(values: Mapping[str, Any]) -> dict[str, Any]:
    """Ids of the tokens that the engine knows: the header names those that end an answer, or their names are known."""
    ends = [values[key] for key in _ENDS if values.get(key) is not None]
    kinds = values.get("tokenizer.ggml.token_type", ())
    for token_id, (token, kind) in enumerate(zip(values.get("tokenizer.ggml.tokens", ()), kinds, strict=False)):
        if kind == _CONTROL and token in _END_TOKENS and token_id not in ends:
            ends.append(token_id)
    names = {"bos_token_id": "bos", "pad_token_id": "padding"}
    return {"eos_token_id": ends} | {key: values.get(f"tokenizer.ggml.{name}_token_id") for key, name in names.items()}
