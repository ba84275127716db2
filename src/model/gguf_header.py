"""The keys of a GGUF header for a model: the other direction of gguf.py.

What a header cannot say is not left out in silence: the written keys are read back, and a model that would come out
different is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .config_json import ModelConfigError
from .feed_forwards import MLP
from .gguf import ARCHITECTURES, FREQUENCIES, Architecture, config_of
from .mixers import Attention, RopeSpec
from .read import read_config
from .spec import ModelSpec

_ARCHITECTURES = {  # the class in config.json -> llama.cpp's name
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",  # its language model
}
_GEMMA_PERIOD = 6  # of layers that see everything, which llama.cpp assumes where no key says another
_SAME = {  # in both directions by other means, or of no effect on what is computed
    *("architecture", "model_type", "dtype", "quantization", "is_part", "weight_names", "assumptions"),
}


def architecture_of(spec: ModelSpec) -> tuple[str, Architecture]:
    """llama.cpp's name and description. Raises ModelConfigError for a model that is not written as GGUF."""
    name = _ARCHITECTURES.get(spec.architecture)
    if name is None:
        raise ModelConfigError(
            f"{spec.architecture}: not written as GGUF; supported: {', '.join(_ARCHITECTURES)}", "M304"
        )
    return name, ARCHITECTURES[name]


def header_of(spec: ModelSpec) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Keys of the architecture, and the elements of small tensors that belong to the description, by name.

    Raises ModelConfigError for a model that a GGUF file cannot describe.
    """
    name, _ = architecture_of(spec)
    attention, mlp = spec.attention, next((layer.feed_forward for layer in spec.layers), None)
    if attention is None or not isinstance(mlp, MLP):
        raise ModelConfigError(f"{spec.architecture}: a layer without attention or MLP is not written as GGUF", "M304")
    by_layer = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, Attention)]
    full = next((each for each in by_layer if each.window is None), attention)
    own: dict[str, Any] = {
        "context_length": spec.max_position_embeddings,
        "embedding_length": spec.hidden_size,
        "block_count": spec.num_layers,
        "feed_forward_length": mlp.width,
        "attention.head_count": attention.num_heads,
        "attention.head_count_kv": attention.num_kv_heads,
        "attention.key_length": attention.head_dim,
        "attention.value_length": attention.head_dim,
        "attention.layer_norm_rms_epsilon": float(spec.norm.eps),
        "vocab_size": spec.vocab_size,
    }
    factors: dict[str, list[float]] = {}
    if full.rope is not None:
        own |= _rope(full.rope, attention.head_dim)
        if full.rope.kind == "llama3":
            factors[FREQUENCIES] = llama3_divisors(full.rope, attention.head_dim)
    if name == "gemma3":
        own |= _windows(by_layer)
    values = {"general.architecture": name, **{f"{name}.{key}": value for key, value in own.items()}}
    _check(spec, values, factors)
    return values, factors


def llama3_divisors(rope: RopeSpec, head_dim: int) -> list[float]:
    """Divisors of the frequencies of the rotary embedding, one for each pair. Source: Llama 3.1's own code."""
    assert rope.factor is not None
    low, high = rope.low_freq_factor or 1.0, rope.high_freq_factor or 4.0
    trained, found = rope.original_max_position_embeddings or 8192, []
    for pair in range(head_dim // 2):
        turns = trained / (2 * math.pi * rope.theta ** (2 * pair / head_dim))  # over the trained context
        share = min(1.0, max(0.0, (turns - low) / (high - low) if high > low else float(turns >= low)))
        found.append(1 / (share + (1 - share) / rope.factor))
    return found


def _rope(rope: RopeSpec, head_dim: int) -> dict[str, Any]:
    own: dict[str, Any] = {
        "rope.freq_base": float(rope.theta),
        "rope.dimension_count": int(head_dim * rope.partial_rotary_factor),
    }
    if rope.kind == "linear":
        own |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope.factor or 1)}
    elif rope.kind not in ("default", "llama3"):
        raise ModelConfigError(
            f"rope type `{rope.kind}` is not written as GGUF; supported: default, linear, llama3", "M304"
        )
    return own


def _windows(by_layer: list[Attention]) -> dict[str, Any]:
    local = next((each for each in by_layer if each.window is not None), None)
    if local is None or local.window is None or local.rope is None:
        return {}
    own: dict[str, Any] = {"attention.sliding_window": local.window, "rope.freq_base_swa": float(local.rope.theta)}
    period = next((index for index, each in enumerate(by_layer, 1) if each.window is None), _GEMMA_PERIOD)
    if period != _GEMMA_PERIOD:
        own["attention.sliding_window_pattern"] = period
    return own


def _check(spec: ModelSpec, values: Mapping[str, Any], factors: Mapping[str, list[float]]) -> None:
    """Raises ModelConfigError unless the header describes the same model."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (spec.vocab_size, spec.hidden_size)}
    if not spec.is_tied:
        shapes["output.weight"] = shapes["token_embd.weight"]
    attention, mlp = spec.attention, spec.layers[0].feed_forward
    if attention is not None and attention.has_bias:
        shapes["blk.0.attn_q.bias"] = (attention.num_heads * attention.head_dim,)
    if isinstance(mlp, MLP) and mlp.has_bias:
        shapes["blk.0.ffn_up.bias"] = (mlp.width,)
    read, _ = read_config(config_of(values, shapes, factors))
    before, after = _comparable(spec), _comparable(read)
    if different := [key for key in before if before[key] != after[key]]:
        at = different[0]
        own, other = before[at], after[at]
        if isinstance(own, list) and isinstance(other, list):
            own, other = _differing(own, other)
        raise ModelConfigError(
            f"{spec.architecture}: a GGUF file cannot describe this model: `{at}` would change from {own} to {other}",
            "M304",
        )


def _differing(own: list[Any], other: list[Any]) -> tuple[Any, Any]:
    """The first difference inside of the layers, as `key=value`."""
    for mine, theirs in zip(own, other, strict=False):
        for key in mine:
            if mine[key] != theirs[key]:
                return f"{key}={mine[key]}", f"{key}={theirs[key]}"
    return f"{len(own)} layers", f"{len(other)} layers"


def _comparable(spec: ModelSpec) -> dict[str, Any]:
    """Numbers as float32 holds them. Of the rope type llama3 only the divisors are written, which are its own."""
    found: dict[str, Any] = {key: value for key, value in spec.model_dump().items() if key not in _SAME}
    layers: list[dict[str, Any]] = []
    for layer in found["layers"]:
        flat = {**{key: value for key, value in layer.items() if key not in ("mixer", "feed_forward")}}
        flat |= layer["mixer"] or {}
        flat |= {f"feed_forward.{key}": value for key, value in (layer["feed_forward"] or {}).items()}
        rope = flat.pop("rope", None) or {}
        if rope.get("kind") in ("llama3", "longrope"):
            rope = {"theta": rope["theta"]}
        if rope.get("kind") == "default":
            rope = {key: rope[key] for key in ("theta", "kind", "partial_rotary_factor")}
        flat |= {f"rope.{key}": value for key, value in rope.items()}
        flat["scale"] = None if flat["scale"] in (None, flat["head_dim"] ** -0.5) else float(f"{flat['scale']:.6g}")
        layers.append(flat)
    return {**found, "layers": layers}
