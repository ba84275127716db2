"""Number of parameters of a shape, for models whose weights are not available, and number used per token.

Exact for the families that the engine runs, within about one per cent for the other well-known ones. If weight
files are available, their headers are used instead (headers.py).
"""

from __future__ import annotations

from typing import NamedTuple

from .config_reader import ConfigReader
from .shape import ModelShape


class Parameters(NamedTuple):
    total: int
    active: int  # parameters used for one token; one row of the embedding
    matrices: int  # part of the total: matrices of the layers, which quantisation shrinks


def count_parameters(shape: ModelShape) -> Parameters:
    reader = ConfigReader(shape.config)
    total = active = matrices = 0
    for index, layer in enumerate(shape.layers):
        if layer.kind == "cross" and index >= _num_decoder_layers(shape):
            mixer = 2 * shape.hidden_size * (shape.num_heads + shape.num_kv_heads) * shape.head_dim
            total, active, matrices = total + mixer, active + mixer, matrices + mixer
            continue
        mixer = _mixer(shape, reader, layer.kind)
        all_of_it, for_a_token = _feed_forward(shape, reader, index, layer.kind)
        small = _norms(shape) * shape.hidden_size + _small(shape, reader, layer.kind)
        total += mixer + all_of_it + small
        active += mixer + for_a_token + small
        matrices += mixer + all_of_it
    table = shape.vocab_size * shape.hidden_size
    embeddings = table * (1 if shape.is_tied else 2)
    if shape.model_type in ("gpt2", "opt", "gpt_bigcode"):
        embeddings += shape.max_position_embeddings * shape.hidden_size
    return Parameters(total + embeddings + shape.hidden_size, active + table + 2 * shape.hidden_size, matrices)


def _num_decoder_layers(shape: ModelShape) -> int:
    return len(shape.layers) // 2 if shape.config.get("is_encoder_decoder") else len(shape.layers)


def _norms(shape: ModelShape) -> int:
    return 4 if shape.model_type in ("gemma2", "gemma3", "gemma3_text") else 2


def _small(shape: ModelShape, reader: ConfigReader, kind: str) -> int:
    """Biases and norms inside a layer, where they are known."""
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    small = 0
    if kind in ("full", "window") and (shape.model_type in _QKV_BIAS or reader.flag("attention_bias")):
        small += queries + 2 * keys
    if kind in ("full", "window") and (reader.flag("attention_bias") or shape.model_type in ("gpt2", "phi", "opt")):
        small += 0 if shape.model_type in ("qwen2", "qwen2_moe") else shape.hidden_size
    if kind in ("full", "window") and shape.model_type in _HEAD_NORMS:
        small += 2 * shape.head_dim
    if reader.flag("mlp_bias") or shape.model_type in ("gpt2", "phi", "opt"):
        small += (1 + shape.is_gated) * shape.intermediate_size + shape.hidden_size
    return small


_QKV_BIAS = {"qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "gpt2", "phi", "opt"}
_HEAD_NORMS = {"qwen3", "qwen3_moe", "qwen3_next", "gemma3", "gemma3_text"}


def _mixer(shape: ModelShape, reader: ConfigReader, kind: str) -> int:
    hidden = shape.hidden_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    if kind == "none":
        return 0
    if kind == "state":
        return _state_mixer(shape, reader)
    if kind == "latent":
        return _latent_mixer(shape, reader)
    gate = queries * hidden if shape.model_type == "qwen3_next" else 0  # of the attention's output
    return hidden * (queries + 2 * keys) + queries * hidden + gate


def _latent_mixer(shape: ModelShape, reader: ConfigReader) -> int:
    """DeepSeek-V2, arXiv:2405.04434, section 2.1: queries and key-values go through low-rank projections."""
    rank, rope = reader.number("kv_lora_rank", 0), reader.number("qk_rope_head_dim", 64)
    plain, value = reader.number("qk_nope_head_dim", 128), reader.number("v_head_dim", 128)
    query_rank, hidden, heads = reader.number("q_lora_rank", 0), shape.hidden_size, shape.num_heads
    queries = heads * (plain + rope)
    query_weights = hidden * query_rank + query_rank * queries if query_rank else hidden * queries
    index = reader.number("index_n_heads", 0) * reader.number("index_head_dim", 0) * (query_rank or hidden)
    return query_weights + index + hidden * (rank + rope) + rank * heads * (plain + value) + heads * value * hidden


def _state_mixer(shape: ModelShape, reader: ConfigReader) -> int:
    hidden = shape.hidden_size
    if "linear_num_value_heads" in reader.values or shape.model_type == "qwen3_next":
        keys = reader.number("linear_num_key_heads", 16) * reader.number("linear_key_head_dim", 128)
        heads = reader.number("linear_num_value_heads", 32)
        values = heads * reader.number("linear_value_head_dim", 128)
        return hidden * (2 * keys + 2 * values + 2 * heads) + values * hidden
    if "conv_L_cache" in reader.values:
        return 4 * hidden * hidden
    if isinstance(reader.get("linear_attn_config"), dict) or "attn_type_list" in reader.values:
        inner = shape.num_heads * reader.number("head_dim", 128)
        return 5 * hidden * inner
    inner = reader.number("mamba_expand", reader.number("expand", 2)) * hidden
    size = reader.number("mamba_d_state", reader.number("ssm_state_size", reader.number("state_size", 16)))
    kernel = reader.number("mamba_d_conv", reader.number("conv_kernel", 4))
    heads = reader.number("mamba_n_heads", reader.number("mamba_num_heads", 0))
    if heads:  # Mamba 2: one projection in for gate, input, B, C and step
        inner = heads * reader.number("mamba_d_head", reader.number("mamba_head_dim", inner // heads))
        groups = reader.number("mamba_n_groups", reader.number("n_groups", 1)) * size
        return hidden * (2 * inner + 2 * groups + heads) + (inner + 2 * groups) * kernel + inner * hidden
    rank = reader.number("mamba_dt_rank", reader.number("time_step_rank", -(-hidden // 16)))
    return 2 * hidden * inner + inner * kernel + inner * (rank + 2 * size) + rank * inner + inner * (size + hidden)


def _feed_forward(shape: ModelShape, reader: ConfigReader, index: int, kind: str) -> tuple[int, int]:
    """Parameters of a layer's feed-forward matrices: all, and those used for one token."""
    hidden, matrices = shape.hidden_size, 3 if shape.is_gated else 2
    if shape.model_type in ("mamba", "mamba2", "falcon_mamba"):
        return 0, 0
    if shape.model_type == "nemotron_h" and kind != "none":
        return 0, 0
    experts = shape.experts
    if experts is not None and index < len(experts.layers) and experts.layers[index]:
        one, shared = matrices * hidden * experts.width, matrices * hidden * experts.shared_width
        router = hidden * experts.count
        return experts.count * one + shared + router, experts.per_token * one + shared + router
    width = reader.number("block_ff_dim", shape.intermediate_size)
    if width != shape.intermediate_size and reader.flag("block_auto_adjust_ff_dim"):  # LFM2
        width = -(-2 * width // 3 // 256) * 256
    return matrices * hidden * width, matrices * hidden * width
