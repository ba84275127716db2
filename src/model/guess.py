"""ModelSpec of a model whose family is not known: sizes from the keys that most families use, in any spelling.

read.py is strict, because the engine must understand a model exactly. This module assumes what is missing and lists
it in `assumptions`. Defaults come from the transformers library's config classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config_json import LIMITS, ModelConfigError
from .config_reader import ConfigReader
from .feed_forwards import MLP, Experts
from .mixers import (
    Attention,
    CrossAttention,
    GatedDelta,
    LatentAttention,
    LightningAttention,
    Mamba,
    Mamba2,
    Recurrent,
    ShortConvolution,
)
from .quantisation_config import read_quantisation
from .spec import LayerSpec, ModelSpec, NormPlaces

_NESTED = ("text_config", "language_config", "llm_config", "thinker_config", "decoder", "language_model_config")
_UNGATED = {"gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "falcon", "mpt", "phi", "starcoder2", "gpt_bigcode"}
_UNGATED |= {"whisper", "nemotron", "nemotron_h", "persimmon", "bart", "marian"}
_TIED = {"gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n_text", "gpt2", "bloom", "falcon", "cohere", "cohere2"}
_TIED |= {"mpt", "opt", "whisper", "gpt_bigcode", "t5"}
_HEAD_DIMS = {"gemma": 256, "gemma2": 256, "gemma3": 256, "gemma3_text": 256, "qwen3": 128, "qwen3_moe": 128}
_QKV_BIAS = {"qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "gpt2", "phi", "opt"}
_OUT_BIAS = {"gpt2", "phi", "opt"}
_HEAD_NORMS = {"qwen3", "qwen3_moe", "qwen3_next", "gemma3", "gemma3_text"}
_FOUR_NORMS = {"gemma2", "gemma3", "gemma3_text"}
_WINDOW_EVERY_OTHER = {"gemma2", "gpt_oss"}
_WINDOW_DEFAULTS = {"gemma2": 4096, "gemma3": 4096, "gemma3_text": 4096, "gpt_oss": 128, "cohere2": 4096}
_PATTERN_DEFAULTS = {"llama4_text": 4, "gemma3": 6, "gemma3_text": 6, "gemma3n_text": 5, "cohere2": 4}
_ALWAYS_WINDOWED = {"mistral", "mixtral", "phi3", "starcoder2", "phimoe"}
_OF_DECODER = {
    "decoder_layers": "num_hidden_layers",
    "num_decoder_layers": "num_hidden_layers",
    "decoder_attention_heads": "num_attention_heads",
    "num_decoder_attention_heads": "num_attention_heads",
    "decoder_ffn_dim": "intermediate_size",
}
_PADDED_POSITIONS = {"roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod", "camembert"}
_PADDED_POSITIONS |= {"data2vec-text"}
_PURE_STATE = {"mamba", "falcon_mamba", "mamba2", "rwkv", "rwkv5", "xlstm"}


def guess(config: Mapping[str, Any]) -> ModelSpec:
    """Raises ModelConfigError for a value that no model has."""
    text, is_part = text_part(config)
    architectures = config.get("architectures") or text.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else None
    if isinstance(named, str) and named.endswith("ForCausalLM"):
        text = _decoder_alone(text)
    reader = ConfigReader(text)
    model_type = reader.text("model_type") or ConfigReader(config).text("model_type")
    num_layers = reader.number("num_hidden_layers") * _attentions_per_layer(reader, model_type)
    if is_part:
        reader.assumptions.append("only the language part was counted; encoders of images or sound come on top")
    layers = _layers(reader, model_type, num_layers)
    return ModelSpec(
        architecture=named if isinstance(named, str) else "",
        model_type=model_type,
        hidden_size=reader.number("hidden_size"),
        vocab_size=reader.number("vocab_size"),
        max_position_embeddings=_num_positions(reader, model_type),
        is_tied=_is_tied(config, text, model_type),
        has_position_table=model_type in ("gpt2", "opt", "gpt_bigcode"),
        layers=layers,
        dtype=named_dtype(config, text),
        quantization=read_quantisation(config, text),
        is_part=is_part,
        is_decoder=reader.flag("is_decoder"),
        assumptions=tuple(dict.fromkeys(reader.assumptions)),
    )


def text_part(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The language model's keys of a config that also describes encoders; and whether it was such a config."""
    part = config
    while "hidden_size" not in part:
        inner = next((part[key] for key in _NESTED if isinstance(part.get(key), Mapping)), None)
        if inner is None:
            break
        part = inner
    return part, part is not config


def _attentions_per_layer(reader: ConfigReader, model_type: str) -> int:
    """How often a layer that config.json counts computes attention, each time with keys and values of its own."""
    if model_type == "longcat_flash" and "num_hidden_layers" not in reader.values:
        return 2
    if model_type == "hrm_text" and "num_layers_per_stack" not in reader.values:  # two stacks, in cycles
        return reader.number("H_cycles", 2) * (reader.number("L_cycles", 3) + 1)
    return 1


def _decoder_alone(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of an encoder-decoder's decoder, under the names that models without an encoder have."""
    own = {name: text[key] for key, name in _OF_DECODER.items() if key in text}
    return {**text, **own, "is_encoder_decoder": False}


def _kv_heads(reader: ConfigReader, heads: int) -> int:
    attention = reader.part("attn_config")
    if attention is not None and attention.get("kv_n_heads") is not None:
        return attention.number("num_key_value_heads", heads)
    is_shared = reader.flag("multi_query") and not reader.flag("new_decoder_architecture")
    return 1 if is_shared else heads


def _num_positions(reader: ConfigReader, model_type: str) -> int:
    found = reader.number("max_position_embeddings", 0)
    if model_type in _PADDED_POSITIONS:  # rows of the table up to that of padding are of no token
        found = max(1, found - 1 - reader.number("pad_token_id", 1))
    if found:
        return found
    reader.assumptions.append("config.json names no longest context; 32768 tokens were taken")
    return 32768


def _is_tied(config: Mapping[str, Any], text: Mapping[str, Any], model_type: str) -> bool:
    for values in (text, config):
        if isinstance(values.get("tie_word_embeddings"), bool):
            return bool(values["tie_word_embeddings"])
    return model_type in _TIED


def named_dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    for values in (config, text):
        named = values.get("dtype") or values.get("torch_dtype")
        if named in ("float32", "bfloat16", "float16"):
            return str(named)
    return "bfloat16"


def _layers(reader: ConfigReader, model_type: str, num_layers: int) -> tuple[LayerSpec, ...]:
    """One entry per layer that the model runs."""
    window = _window(reader, model_type)
    full = _latent(reader) or _attention(reader, model_type)
    kinds = _kinds(reader, model_type, num_layers)
    norms: NormPlaces = "both" if model_type in _FOUR_NORMS else "inputs"
    layers: list[LayerSpec] = []
    for index, kind in enumerate(kinds):
        mixer: Any = full
        if kind == "window" and window and isinstance(full, Attention):
            mixer = full.model_copy(update={"window": window})
        elif kind == "state":
            mixer = _state(reader, model_type)
        elif kind == "none":
            mixer = None
        elif kind == "cross":
            mixer = _cross(reader, model_type)
        feed_forward = _feed_forward(reader, model_type, index, kind)
        layers.append(LayerSpec(mixer=mixer, feed_forward=feed_forward, norms=norms))
    if reader.flag("is_encoder_decoder"):  # each decoder layer looks at the encoder's output besides its own tokens
        layers += [LayerSpec(mixer=_cross(reader, model_type), norms="common")] * num_layers
        reader.assumptions.append("an encoder-decoder: weights of the encoder were counted like a decoder's")
    return tuple(layers)


def _attention(reader: ConfigReader, model_type: str) -> Attention:
    hidden, heads = reader.number("hidden_size"), max(1, reader.number("num_attention_heads", 1))
    has_bias = reader.flag("attention_bias")
    return Attention(
        num_heads=heads,
        num_kv_heads=reader.number("num_key_value_heads", _kv_heads(reader, heads)),
        head_dim=reader.number("head_dim", _HEAD_DIMS.get(model_type) or hidden // heads),
        has_bias=has_bias or model_type in _QKV_BIAS,
        has_out_bias=(has_bias or model_type in _OUT_BIAS) and model_type not in ("qwen2", "qwen2_moe"),
        head_norm="head" if model_type in _HEAD_NORMS else "none",
        gate="element" if reader.flag("attn_output_gate", model_type == "qwen3_next") else "none",
    )


def _latent(reader: ConfigReader) -> LatentAttention | None:
    rank = reader.number("kv_lora_rank", 0)
    if not rank:
        return None
    return LatentAttention(
        num_heads=max(1, reader.number("num_attention_heads", 1)),
        query_rank=reader.number("q_lora_rank", 0),
        rank=rank,
        plain_dim=reader.number("qk_nope_head_dim", 128),
        rope_dim=reader.number("qk_rope_head_dim", 64),
        value_dim=reader.number("v_head_dim", 128),
        index_heads=reader.number("index_n_heads", 0),
        index_dim=reader.number("index_head_dim", 0),
    )


def _kinds(reader: ConfigReader, model_type: str, num_layers: int) -> list[str]:
    """One of full, window, state, cross, none per layer."""
    if named := reader.layers("layer_types") or reader.layers("layers_block_type"):
        return [_kind_of_name(str(name)) for name in named[:num_layers]] + ["full"] * (num_layers - len(named))
    if pattern := reader.text("hybrid_override_pattern"):  # Nemotron-H: M mamba, * attention, - MLP
        if len(pattern) > LIMITS["num_hidden_layers"]:
            raise ModelConfigError(f"`hybrid_override_pattern` has {len(pattern)} layers")
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


def _state(reader: ConfigReader, model_type: str) -> Recurrent:
    hidden = reader.number("hidden_size")
    if "linear_num_value_heads" in reader.values or model_type == "qwen3_next":
        return GatedDelta(
            num_key_heads=reader.number("linear_num_key_heads", 16),
            num_value_heads=reader.number("linear_num_value_heads", 32),
            key_dim=reader.number("linear_key_head_dim", 128),
            value_dim=reader.number("linear_value_head_dim", 128),
            conv_width=reader.number("linear_conv_kernel_dim", 4),
        )
    if "conv_L_cache" in reader.values:  # LFM2
        return ShortConvolution(width=hidden, conv_width=reader.number("conv_L_cache", 3))
    if isinstance(reader.get("linear_attn_config"), Mapping) or "attn_type_list" in reader.values:
        return LightningAttention(
            num_heads=reader.number("num_attention_heads"), head_dim=reader.number("head_dim", 128)
        )
    if model_type not in ("jamba", "mamba", "falcon_mamba", "mamba2", "bamba", "granitemoehybrid", "nemotron_h"):
        reader.assumptions.append("the recurrent layers were counted like Mamba's")
    width = reader.number("mamba_expand", reader.number("expand", 2)) * hidden
    heads = reader.number("mamba_n_heads", reader.number("mamba_num_heads", 0))
    if heads:
        width = heads * reader.number("mamba_d_head", reader.number("mamba_head_dim", width // heads))
    state_size = reader.number("mamba_d_state", reader.number("ssm_state_size", reader.number("state_size", 16)))
    conv_width = reader.number("mamba_d_conv", reader.number("conv_kernel", 4))
    if heads:
        return Mamba2(
            num_heads=heads,
            head_dim=width // heads,
            num_groups=reader.number("mamba_n_groups", reader.number("n_groups", 1)),
            state_size=state_size,
            conv_width=conv_width,
        )
    step_rank = reader.number("mamba_dt_rank", reader.number("time_step_rank", -(-hidden // 16)))
    return Mamba(width=width, state_size=state_size, conv_width=conv_width, step_rank=step_rank)


def _cross(reader: ConfigReader, model_type: str) -> CrossAttention:
    tokens = reader.number("max_source_positions", 0)
    if not tokens:
        tokens = 6404 if "cross_attention_layers" in reader.values else reader.number("max_position_embeddings", 512)
        reader.assumptions.append(f"cross attention was counted over {tokens} tokens of the other input")
    own = _attention(reader, model_type)
    return CrossAttention(
        num_heads=own.num_heads, num_kv_heads=own.num_kv_heads, head_dim=own.head_dim, num_tokens=tokens
    )


def _feed_forward(reader: ConfigReader, model_type: str, index: int, kind: str) -> MLP | Experts | None:
    is_gated = model_type not in _UNGATED
    hidden = reader.number("hidden_size")
    width = reader.number("intermediate_size", hidden * 4)
    if model_type in ("mamba", "mamba2", "falcon_mamba") or (model_type == "nemotron_h" and kind != "none"):
        return None
    count = reader.number("num_experts", 0)
    if count >= 2 and _has_experts(reader, index):
        expert = reader.number("moe_intermediate_size", width)
        shared = reader.number("shared_expert_intermediate_size", 0)
        shared += (reader.number("n_shared_experts", 0) or reader.number("num_shared_experts", 0)) * expert
        if model_type == "llama4_text":
            shared += expert
        return Experts(
            count=count,
            per_token=max(1, reader.number("num_experts_per_token", 2)),
            width=expert,
            shared_width=shared or reader.number("shared_intermediate_size", 0),
            is_gated=is_gated,
        )
    block_width = reader.number("block_ff_dim", width)
    if block_width != width and reader.flag("block_auto_adjust_ff_dim"):  # LFM2
        block_width = -(-2 * block_width // 3 // 256) * 256
    has_bias = reader.flag("mlp_bias") or model_type in ("gpt2", "phi", "opt")
    return MLP(width=block_width, is_gated=is_gated, has_bias=has_bias)


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
