"""A model's shape from its config.json, for any architecture: the sizes that a plan needs.

resolve/model_spec.py is strict, because the engine must understand a model exactly. This module is lenient: it assumes
what is missing and lists it in `assumptions`. Defaults are those of the transformers library's config classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..resolve.resolved import ModelSpec, Record
from .config_reader import ConfigReader
from .layers import LayerShape, read_layers

_NESTED = ("text_config", "language_config", "llm_config", "thinker_config", "decoder", "language_model_config")


class Experts(Record):
    """Expert layers: `per_token` of `count` run for each token; `shared_width` is what runs for all of them."""

    count: int
    per_token: int
    width: int
    shared_width: int
    layers: tuple[bool, ...]


class ModelShape(Record):
    architecture: str
    model_type: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    is_tied: bool
    is_gated: bool  # the feed-forward block has three matrices instead of two
    layers: tuple[LayerShape, ...]
    experts: Experts | None
    checkpoint_dtype: str  # what config.json names; bfloat16 where it is silent
    quantization: str | None  # name of the method of a quantised checkpoint
    quantization_bits: int  # of a weight in it; 16 without one
    config: dict[str, Any]  # the text model's part of config.json
    assumptions: tuple[str, ...] = ()

    @property
    def is_latent(self) -> bool:
        return any(layer.kind == "latent" for layer in self.layers)


def read_shape(config: Mapping[str, Any]) -> ModelShape:
    """The shape of config.json, as written or with hf_overrides merged in.

    Missing values are assumed and listed in `assumptions`. Raises AbsurdValue for those that no model has.
    """
    text, is_nested = text_part(config)
    reader = ConfigReader(text)
    architectures = config.get("architectures") or text.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else None
    architecture = named if isinstance(named, str) else ""
    model_type = reader.text("model_type") or ConfigReader(config).text("model_type")
    hidden, heads = reader.number("hidden_size"), max(1, reader.number("num_attention_heads", 1))
    kv_heads = reader.number("num_key_value_heads", _kv_heads(reader, heads))
    head_dim = reader.number("head_dim", _HEAD_DIMS.get(model_type) or hidden // heads)
    num_layers = reader.number("num_hidden_layers")
    if is_nested:
        reader.assumptions.append("only the language part was counted; encoders of images or sound come on top")
    layers = read_layers(reader, model_type, num_layers, kv_heads, head_dim)
    method, bits = _quantization(config, text)
    gated = model_type not in _UNGATED
    return ModelShape(
        architecture=architecture,
        model_type=model_type,
        num_layers=len(layers),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=reader.number("intermediate_size", hidden * 4),
        vocab_size=reader.number("vocab_size"),
        max_position_embeddings=reader.number("max_position_embeddings", 0) or _unlimited(reader),
        is_tied=_is_tied(config, text, model_type),
        is_gated=gated,
        layers=layers,
        experts=_experts(reader, len(layers)),
        checkpoint_dtype=_dtype(config, text),
        quantization=method,
        quantization_bits=bits,
        config=dict(text),
        assumptions=tuple(dict.fromkeys(reader.assumptions)),
    )


def shape_of(model_spec: ModelSpec) -> ModelShape:
    """The shape of a model that the engine runs, from what it was started with."""
    layer = LayerShape(kind="full", width=2 * model_spec.num_kv_heads * model_spec.head_dim)
    return ModelShape(
        architecture=model_spec.architecture,
        model_type=model_spec.model_type,
        num_layers=model_spec.num_layers,
        hidden_size=model_spec.hidden_size,
        num_heads=model_spec.num_heads,
        num_kv_heads=model_spec.num_kv_heads,
        head_dim=model_spec.head_dim,
        intermediate_size=model_spec.intermediate_size,
        vocab_size=model_spec.vocab_size,
        max_position_embeddings=model_spec.max_position_embeddings,
        is_tied=model_spec.tie_word_embeddings,
        is_gated=True,
        layers=(layer,) * model_spec.num_layers,
        experts=None,
        checkpoint_dtype=model_spec.checkpoint_dtype,
        quantization=None,
        quantization_bits=16,
        config={},
    )


_UNGATED = {"gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "falcon", "mpt", "phi", "starcoder2", "gpt_bigcode"}
_UNGATED |= {"whisper", "nemotron", "nemotron_h", "persimmon", "bart", "marian"}
_TIED = {"gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n_text", "gpt2", "bloom", "falcon", "cohere", "cohere2"}
_TIED |= {"mpt", "opt", "whisper", "gpt_bigcode", "t5"}
_HEAD_DIMS = {"gemma": 256, "gemma2": 256, "gemma3": 256, "gemma3_text": 256, "qwen3": 128, "qwen3_moe": 128}


def text_part(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The language model's keys of a config that also describes encoders; and whether it was such a config."""
    part = config
    while "hidden_size" not in part:
        inner = next((part[key] for key in _NESTED if isinstance(part.get(key), Mapping)), None)
        if inner is None:
            break
        part = inner
    return part, part is not config


def _kv_heads(reader: ConfigReader, heads: int) -> int:
    attention = reader.part("attn_config")
    if attention is not None and attention.get("kv_n_heads") is not None:
        return attention.number("num_key_value_heads", heads)
    is_shared = reader.flag("multi_query") and not reader.flag("new_decoder_architecture")
    return 1 if is_shared else heads


def _unlimited(reader: ConfigReader) -> int:
    reader.assumptions.append("config.json names no longest context; 32768 tokens were taken")
    return 32768


def _is_tied(config: Mapping[str, Any], text: Mapping[str, Any], model_type: str) -> bool:
    for values in (text, config):
        if isinstance(values.get("tie_word_embeddings"), bool):
            return bool(values["tie_word_embeddings"])
    return model_type in _TIED


def _dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    for values in (config, text):
        named = values.get("dtype") or values.get("torch_dtype")
        if named in ("float32", "bfloat16", "float16"):
            return str(named)
    return "bfloat16"


def _quantization(config: Mapping[str, Any], text: Mapping[str, Any]) -> tuple[str | None, int]:
    """Method and bits per weight of a quantised checkpoint, as its config names them."""
    found = config.get("quantization_config") or text.get("quantization_config") or config.get("compression_config")
    if not isinstance(found, Mapping):
        return None, 16
    named = found.get("quant_method") or found.get("quant_algo")
    method = named if isinstance(named, str) else "unknown"
    if method == "bitsandbytes":
        return method, 4 if found.get("load_in_4bit") else 8
    if method == "mxfp4":
        return method, 4
    if (bits := _bits(found.get("bits"))) is not None:
        return method, bits
    groups = found.get("config_groups")
    if isinstance(groups, Mapping):
        for group in groups.values():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if isinstance(weights, Mapping) and (bits := _bits(weights.get("num_bits"))) is not None:
                return method, bits
    return method, 4 if "4" in method else 8


def _bits(value: Any) -> int | None:
    return value if isinstance(value, int) and 1 <= value <= 64 else None


def _experts(reader: ConfigReader, num_layers: int) -> Experts | None:
    count = reader.number("num_experts", 0)
    if count < 2:
        return None
    width = reader.number("moe_intermediate_size", reader.number("intermediate_size", 0))
    shared = reader.number("shared_expert_intermediate_size", 0)
    shared += (reader.number("n_shared_experts", 0) or reader.number("num_shared_experts", 0)) * width
    return Experts(
        count=count,
        per_token=max(1, reader.number("num_experts_per_token", 2)),
        width=width,
        shared_width=shared or reader.number("shared_intermediate_size", 0),
        layers=tuple(_has_experts(reader, index) for index in range(num_layers)),
    )


def _has_experts(reader: ConfigReader, index: int) -> bool:
    if index < reader.number("first_k_dense_replace", 0):
        return False
    if index in (reader.layers("mlp_only_layers") or ()):
        return False
    if period := reader.number("expert_layer_period", 0):  # Jamba
        return index % period == reader.number("expert_layer_offset", 0)
    step = reader.number("decoder_sparse_step", 1) or 1  # Qwen-MoE
    step = reader.number("interleave_moe_layer_step", step) or 1  # Llama 4
    step = reader.number("moe_layer_freq", step) or 1  # DeepSeek
    return (index + 1) % step == 0
