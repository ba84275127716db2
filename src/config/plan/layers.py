"""What each layer of a model remembers of a sequence: keys and values, a window of them, a latent, or a fixed state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ..resolve.config_json import LIMITS
from ..resolve.resolved import Record
from .config_reader import AbsurdValue, ConfigReader

Kind = Literal["full", "window", "latent", "state", "cross", "none"]


class LayerShape(Record):
    """What one layer keeps of the tokens it has seen, in elements; bytes follow from the dtype.

    full, window, latent: `width` elements per token, for a window at most `window` tokens.
    state: `width` elements per sequence however long it is, `float32_width` of them always in float32.
    cross: `width` elements per token of another input, which has `window` tokens.
    """

    kind: Kind
    width: int = 0
    window: int = 0
    float32_width: int = 0


_NONE = LayerShape(kind="none")
_WINDOW_EVERY_OTHER = {"gemma2", "gpt_oss"}
_WINDOW_DEFAULTS = {"gemma2": 4096, "gemma3": 4096, "gemma3_text": 4096, "gpt_oss": 128, "cohere2": 4096}
_PATTERN_DEFAULTS = {"gemma3": 6, "gemma3_text": 6, "gemma3n_text": 5, "cohere2": 4}
_ALWAYS_WINDOWED = {"mistral", "mixtral", "phi3", "starcoder2", "phimoe"}
_PURE_STATE = {"mamba", "falcon_mamba", "mamba2", "rwkv", "rwkv5", "xlstm"}


def read_layers(
    reader: ConfigReader, model_type: str, num_layers: int, kv_heads: int, head_dim: int
) -> tuple[LayerShape, ...]:
    """One entry per layer that the model runs."""
    if latent := _latent(reader, model_type):
        full = latent
    else:
        full = LayerShape(kind="full", width=2 * kv_heads * head_dim)
    kinds = _kinds(reader, model_type, num_layers)
    window = _window(reader, model_type)
    layers: list[LayerShape] = []
    for kind in kinds:
        if kind == "window" and window:
            layers.append(LayerShape(kind="window", width=full.width, window=window))
        elif kind == "state":
            layers.append(_state(reader, model_type))
        elif kind == "none":
            layers.append(_NONE)
        elif kind == "cross":
            layers.append(_cross(reader, full))
        else:
            layers.append(full)
    if reader.flag("is_encoder_decoder"):  # each decoder layer looks at the encoder's output besides its own tokens
        layers += [_cross(reader, full)] * num_layers
        reader.assumptions.append("an encoder-decoder: weights of the encoder were counted like a decoder's")
    return tuple(layers)


def _latent(reader: ConfigReader, model_type: str) -> LayerShape | None:
    """Multi-head latent attention keeps one compressed vector and one rotary key per token. arXiv:2405.04434, 2.1."""
    rank = reader.number("kv_lora_rank", 0)
    if not rank:
        return None
    width = rank + reader.number("qk_rope_head_dim", 64)
    if index_dim := reader.number("index_head_dim", 0):  # DeepSeek-V3.2: keys of the index that chooses tokens
        width += index_dim // 2 + 2
        reader.assumptions.append("keys of the sparse-attention index were counted at one byte a number")
    return LayerShape(kind="latent", width=width)


def _kinds(reader: ConfigReader, model_type: str, num_layers: int) -> list[str]:
    """One of full, window, state, cross, none per layer."""
    if named := reader.layers("layer_types") or reader.layers("layers_block_type"):
        return [_kind_of_name(str(name)) for name in named[:num_layers]] + ["full"] * (num_layers - len(named))
    if pattern := reader.text("hybrid_override_pattern"):  # Nemotron-H: M mamba, * attention, - MLP
        if len(pattern) > LIMITS["num_hidden_layers"]:
            raise AbsurdValue(f"`hybrid_override_pattern` has {len(pattern)} layers")
        return [{"M": "state", "*": "full"}.get(letter, "none") for letter in pattern]
    if (listed := reader.layers("attn_type_list")) is not None:  # MiniMax: 0 linear, 1 full
        return ["full" if kind else "state" for kind in listed]
    if (blocks := reader.layers("block_configs")) is not None:  # Nemotron-NAS: some layers have no attention
        return ["none" if _has_no_attention(block) else "full" for block in blocks]
    if (crossing := reader.layers("cross_attention_layers")) is not None:  # Llama 3.2 Vision
        return ["cross" if index in crossing else "full" for index in range(num_layers)]
    if (linear := reader.part("linear_attn_config")) is not None:  # Kimi Linear; counts layers from 1
        full = linear.layers("full_attn_layers") or []
        return ["full" if index + 1 in full else "state" for index in range(num_layers)]
    if (indices := reader.layers("attn_layer_indices")) is not None:  # Bamba
        return ["full" if index in indices else "state" for index in range(num_layers)]
    if period := reader.number("attn_layer_period", 0):  # Jamba
        offset = reader.number("attn_layer_offset", 0)
        return ["full" if index % period == offset else "state" for index in range(num_layers)]
    if interval := reader.number("full_attention_interval", 0) or (4 if model_type == "qwen3_next" else 0):
        return ["state" if (index + 1) % interval else "full" for index in range(num_layers)]
    if model_type in _PURE_STATE:
        return ["state"] * num_layers
    return _windowed(reader, model_type, num_layers)


def _windowed(reader: ConfigReader, model_type: str, num_layers: int) -> list[str]:
    if not _window(reader, model_type):
        return ["full"] * num_layers
    if model_type in _WINDOW_EVERY_OTHER:
        return ["window" if index % 2 == 0 else "full" for index in range(num_layers)]
    pattern = reader.number("sliding_window_pattern", _PATTERN_DEFAULTS.get(model_type, 0))
    if pattern > 1:
        return ["window" if (index + 1) % pattern else "full" for index in range(num_layers)]
    if model_type.startswith("qwen"):  # off unless said, and then from a layer on
        first = reader.number("max_window_layers", 28) if reader.flag("use_sliding_window") else num_layers
        return ["window" if index >= first else "full" for index in range(num_layers)]
    if model_type in _ALWAYS_WINDOWED:
        return ["window"] * num_layers
    reader.assumptions.append("`sliding_window` is set, but not which layers use it; all were counted in full")
    return ["full"] * num_layers


def _window(reader: ConfigReader, model_type: str) -> int:
    if model_type == "llama":
        return 0
    default = _WINDOW_DEFAULTS.get(model_type, 0) if "sliding_window" not in reader.values else 0
    return reader.number("sliding_window", default) or reader.number("attention_chunk_size", 0)


def _kind_of_name(name: str) -> str:
    if "sliding" in name or "chunked" in name or name == "local":
        return "window"
    if name in ("mamba", "mamba2", "linear_attention", "conv", "recurrent", "rwkv", "linear"):
        return "state"
    return "none" if name in ("mlp", "moe") else "full"  # `hybrid` of Zamba has both; its attention counts more


def _has_no_attention(block: Any) -> bool:
    attention = block.get("attention") if isinstance(block, Mapping) else None
    return isinstance(attention, Mapping) and bool(attention.get("no_op") or attention.get("replace_with_linear"))


def _state(reader: ConfigReader, model_type: str) -> LayerShape:
    """The recurrent state of one layer: what a short convolution keeps, and the state itself, in float32."""
    hidden = reader.number("hidden_size")
    if "linear_num_value_heads" in reader.values or model_type == "qwen3_next":  # gated delta net
        keys = reader.number("linear_num_key_heads", 16) * reader.number("linear_key_head_dim", 128)
        values = reader.number("linear_num_value_heads", 32) * reader.number("linear_value_head_dim", 128)
        conv = (2 * keys + values) * (reader.number("linear_conv_kernel_dim", 4) - 1)
        state = values * reader.number("linear_key_head_dim", 128)
        return LayerShape(kind="state", width=conv + state, float32_width=state)
    if "conv_L_cache" in reader.values:  # LFM2: a convolution only
        return LayerShape(kind="state", width=hidden * reader.number("conv_L_cache", 3))
    if isinstance(reader.get("linear_attn_config"), Mapping) or "attn_type_list" in reader.values:
        heads, width = reader.number("num_attention_heads"), reader.number("head_dim", 128)
        state = heads * width * width  # one outer product per head
        return LayerShape(kind="state", width=state, float32_width=state)
    expand = reader.number("mamba_expand", reader.number("expand", 2))
    inner = expand * hidden
    size = reader.number("mamba_d_state", reader.number("ssm_state_size", reader.number("state_size", 16)))
    kernel = reader.number("mamba_d_conv", reader.number("conv_kernel", 4))
    heads = reader.number("mamba_n_heads", reader.number("mamba_num_heads", 0))
    if heads:  # Mamba 2
        inner = heads * reader.number("mamba_d_head", reader.number("mamba_head_dim", inner // heads))
        inner_conv = inner + 2 * reader.number("mamba_n_groups", reader.number("n_groups", 1)) * size
    else:
        inner_conv = inner
    if model_type not in ("jamba", "mamba", "falcon_mamba", "mamba2", "bamba", "granitemoehybrid", "nemotron_h"):
        reader.assumptions.append("the recurrent layers were counted like Mamba's")
    return LayerShape(kind="state", width=inner_conv * (kernel - 1) + inner * size, float32_width=inner * size)


def _cross(reader: ConfigReader, full: LayerShape) -> LayerShape:
    tokens = reader.number("max_source_positions", 0)
    if not tokens:
        tokens = 6404 if "cross_attention_layers" in reader.values else reader.number("max_position_embeddings", 512)
        reader.assumptions.append(f"cross attention was counted over {tokens} tokens of the other input")
    return LayerShape(kind="cross", width=full.width, window=tokens)
