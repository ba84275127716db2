"""The tensors of mixers, whose names are relative to the layer, and the parts of their projections."""

from __future__ import annotations

from collections.abc import Iterator

from .mixers import (
    Attention,
    CompressedAttention,
    CrossAttention,
    GatedDelta,
    KimiDelta,
    LatentAttention,
    LightningAttention,
    Mamba,
    Mamba2,
    Mixer,
    RgLru,
    ShortConvolution,
)
from .tensor import Tensor, linear_tensors

CONVOLUTIONS = ("q_conv1d", "k_conv1d", "v_conv1d")  # of queries, keys and values
DISTANCE_BIASES = "distance_biases"  # of attention; files have one tensor for all layers
HEAD_GATES = "g_proj"
COMPRESSORS = ("compressor", "compressor.indexer")  # of attention, and of the index that chooses its vectors
RG_LRU_INPUTS, RG_LRU_GATES = ("linear_x", "linear_y"), ("input_gate", "recurrent_gate")
LAMBDAS = "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"  # of differential attention
BLOCK_INDEX = "indexer.index_qk_proj"  # the queries of an index of blocks, and its key
UNBIASED = (HEAD_GATES, BLOCK_INDEX)  # projections without a bias where others have one
KIMI_EXPANSIONS = ("f_b_proj", "g_b_proj")  # of decays and of gates
MAMBA_NORMS = "dt_layernorm", "b_layernorm", "c_layernorm"  # of the compressed time steps, B and C
QKV = "q_proj", "k_proj", "v_proj"


def mixer_tensors(hidden: int, mixer: Mixer) -> Iterator[Tensor]:
    match mixer:
        case Attention():
            yield from attention_tensors(hidden, mixer)
        case CrossAttention():
            queries, keys = mixer.num_heads * mixer.head_dim, mixer.num_kv_heads * mixer.head_dim
            yield from linear_tensors("cross_attn.q_proj", queries, hidden)
            yield from linear_tensors("cross_attn.k_proj", keys, hidden)
            yield from linear_tensors("cross_attn.v_proj", keys, hidden)
            yield from linear_tensors("cross_attn.o_proj", hidden, queries)
        case LatentAttention():
            yield from _latent(hidden, mixer)
        case CompressedAttention():
            yield from _compressed(hidden, mixer)
        case GatedDelta():
            yield from _gated_delta(hidden, mixer)
        case KimiDelta():
            yield from _kimi_delta(hidden, mixer)
        case Mamba():
            yield from _mamba(hidden, mixer)
        case Mamba2():
            yield from _mamba2(hidden, mixer)
        case RgLru():
            yield from _rg_lru(hidden, mixer)
        case ShortConvolution():
            yield from linear_tensors("conv.in_proj", 3 * mixer.width, hidden, mixer.has_bias)
            yield Tensor("conv.conv.weight", (mixer.width, 1, mixer.conv_width))
            if mixer.has_bias:
                yield Tensor("conv.conv.bias", (mixer.width,))
            yield from linear_tensors("conv.out_proj", hidden, mixer.width, mixer.has_bias)
        case LightningAttention():
            for name, size in lightning_parts(mixer).items():
                yield from linear_tensors(f"self_attn.{name}", size, hidden)
            yield Tensor("self_attn.norm.weight", (mixer.width,))
            yield from linear_tensors("self_attn.out_proj", hidden, mixer.width)


def attention_tensors(hidden: int, mixer: Attention, inputs: int | None = None) -> Iterator[Tensor]:
    for name, size in attention_parts(mixer).items():
        yield from linear_tensors(f"self_attn.{name}", size, inputs or hidden, mixer.has_bias and name not in UNBIASED)
    if mixer.index is not None:
        yield Tensor("self_attn.indexer.q_layernorm.weight", (mixer.index.dim,))
        yield Tensor("self_attn.indexer.k_layernorm.weight", (mixer.index.dim,))
    yield from linear_tensors("self_attn.o_proj", hidden, mixer.num_heads * mixer.output_dim, mixer.has_out_bias)
    if mixer.head_norm not in ("none", "bare_after_rope"):
        yield _head_norm("self_attn.q_norm", mixer, mixer.num_heads)
        if mixer.keys_of is None:
            yield _head_norm("self_attn.k_norm", mixer, mixer.num_kv_heads)
    if mixer.has_sinks:
        yield Tensor("self_attn.sinks", (mixer.num_heads,))
    if mixer.bias_buckets is not None:
        yield Tensor(f"self_attn.{DISTANCE_BIASES}.weight", (mixer.bias_buckets, mixer.num_heads))
    if mixer.lambda_start is not None:
        for name in LAMBDAS:
            yield Tensor(f"self_attn.{name}", (mixer.query_dim,))


def attention_parts(mixer: Attention) -> dict[str, int]:
    """The projections of its input: names in the checkpoint, and their numbers of outputs."""
    key_heads, value_heads = mixer.num_projected
    queries, keys = mixer.num_heads * mixer.query_dim, key_heads * mixer.head_dim
    values = value_heads * (mixer.value_dim or mixer.head_dim)
    if mixer.is_grouped or mixer.qkv_parts:
        return {"qkv_proj": queries + keys + values}
    if mixer.gate == "element":
        queries *= 2
    sizes = {**dict(zip(QKV, (queries, keys, values), strict=True))}
    if mixer.gate == "head":
        sizes[HEAD_GATES] = mixer.num_heads
    if mixer.index is not None:
        sizes[BLOCK_INDEX] = (mixer.index.heads + 1) * mixer.index.dim
    return {name: size for name, size in sizes.items() if size}


def _head_norm(name: str, mixer: Attention, num_heads: int) -> Tensor:
    if mixer.head_norm == "layer_each":
        return Tensor(f"{name}.{{}}.weight", (mixer.head_dim,), copies=num_heads, used=num_heads)
    return Tensor(f"{name}.weight", head_norm_shape(mixer, num_heads))


def head_norm_shape(mixer: Attention, num_heads: int) -> tuple[int, ...]:
    """Shape of the weight of the norm of queries or keys."""
    match mixer.head_norm:
        case "whole":
            return (num_heads * mixer.head_dim,)
        case "layer":
            return (num_heads, mixer.head_dim)
        case _:
            return (mixer.head_dim,)


def _latent(hidden: int, mixer: LatentAttention) -> Iterator[Tensor]:
    queries = mixer.num_heads * (mixer.plain_dim + mixer.rope_dim)
    if mixer.query_rank:
        yield from linear_tensors("self_attn.q_a_proj", mixer.query_rank, hidden, mixer.has_bias)
        yield Tensor("self_attn.q_a_layernorm.weight", (mixer.query_rank,))
        if mixer.gate == "with_queries":
            yield from linear_tensors("self_attn.q_b_proj", queries + mixer.num_gates, 2 * mixer.query_rank)
        else:
            yield from linear_tensors("self_attn.q_b_proj", queries, mixer.query_rank)
    else:
        yield from linear_tensors("self_attn.q_proj", queries, hidden)
    if mixer.num_gates and mixer.gate != "with_queries":
        yield from linear_tensors(f"self_attn.{HEAD_GATES}", mixer.num_gates, hidden)
    if mixer.has_sinks:
        yield Tensor("self_attn.sinks", (mixer.num_heads,))
    yield from linear_tensors("self_attn.kv_a_proj_with_mqa", mixer.rank + mixer.rope_dim, hidden, mixer.has_bias)
    yield Tensor("self_attn.kv_a_layernorm.weight", (mixer.rank,))
    if mixer.has_key_norm:
        yield Tensor("self_attn.k_rope_only_layernorm.weight", (mixer.rope_dim,))
    heads = mixer.num_heads * (mixer.plain_dim + mixer.value_dim)  # a matrix of each head, unless it is expanded
    yield Tensor("self_attn.kv_b_proj.weight", (heads, mixer.rank), is_matrix=mixer.is_expanded)
    yield from linear_tensors("self_attn.o_proj", hidden, mixer.num_heads * mixer.value_dim, mixer.has_bias)
    if mixer.index_heads and not mixer.shares_index:
        inputs = mixer.query_rank or hidden
        yield from linear_tensors("self_attn.indexer.wq_b", mixer.index_heads * mixer.index_dim, inputs)
        yield from linear_tensors("self_attn.indexer.wk", mixer.index_dim, hidden)
        yield from linear_tensors("self_attn.indexer.weights_proj", mixer.index_heads, hidden)
        yield Tensor("self_attn.indexer.k_norm.weight", (mixer.index_dim,))
        yield Tensor("self_attn.indexer.k_norm.bias", (mixer.index_dim,))


def _compressed(hidden: int, mixer: CompressedAttention) -> Iterator[Tensor]:
    for name, size in compressed_parts(mixer).items():
        yield from linear_tensors(f"self_attn.{name}", size, hidden)
    yield Tensor("self_attn.q_a_norm.weight", (mixer.query_rank,))
    yield from linear_tensors("self_attn.q_b_proj", mixer.num_heads * mixer.head_dim, mixer.query_rank)
    yield Tensor("self_attn.kv_norm.weight", (mixer.head_dim,))
    yield Tensor("self_attn.sinks", (mixer.num_heads,))
    for prefix, width in zip(COMPRESSORS, mixer.input_widths, strict=False):
        yield Tensor(f"self_attn.{prefix}.position_bias", (mixer.rate, width))
        yield Tensor(f"self_attn.{prefix}.kv_norm.weight", (width // (1 + mixer.overlaps),))
    if mixer.index_heads:
        queries = mixer.index_heads * mixer.index_dim
        yield from linear_tensors(f"self_attn.{COMPRESSORS[1]}.q_b_proj", queries, mixer.query_rank)
    groups, rank = mixer.out_groups, mixer.out_rank
    yield Tensor("self_attn.o_a_proj.weight", (groups * rank, mixer.group_width))  # a matrix of each group
    yield from linear_tensors("self_attn.o_b_proj", hidden, groups * rank)


def compressed_parts(mixer: CompressedAttention) -> dict[str, int]:
    """Projections of the mixer's input: names in the checkpoint, and numbers of outputs."""
    parts = {"q_a_proj": mixer.query_rank, "kv_proj": mixer.head_dim}
    for prefix, width in zip(COMPRESSORS, mixer.input_widths, strict=False):
        parts |= {f"{prefix}.kv_proj": width, f"{prefix}.gate_proj": width}
    if mixer.index_heads:
        parts[f"{COMPRESSORS[1]}.scorer.weights_proj"] = mixer.index_heads
    return parts


def _gated_delta(hidden: int, mixer: GatedDelta) -> Iterator[Tensor]:
    values = mixer.num_value_heads * mixer.value_dim
    norm, out_proj = gated_delta_ends(mixer)
    for name, size in gated_delta_parts(mixer).items():
        yield from linear_tensors(f"linear_attn.{name}", size, hidden)
    for name, channels in gated_delta_convolutions(mixer).items():
        yield Tensor(f"linear_attn.{name}.weight", (channels, 1, mixer.conv_width))
    yield Tensor("linear_attn.dt_bias", (mixer.num_value_heads,))
    yield Tensor("linear_attn.A_log", (mixer.num_value_heads,))
    yield Tensor(f"linear_attn.{norm}.weight", (mixer.value_dim,))
    yield from linear_tensors(f"linear_attn.{out_proj}", hidden, values)


def gated_delta_parts(mixer: GatedDelta) -> dict[str, int]:
    """Projections of the mixer's input: names in the checkpoint, and numbers of outputs."""
    keys, values = mixer.num_key_heads * mixer.key_dim, mixer.num_value_heads * mixer.value_dim
    heads = mixer.num_value_heads
    match mixer.form:
        case "by_part":
            return {"in_proj_qkv": mixer.conv_channels, "in_proj_z": values, "in_proj_b": heads, "in_proj_a": heads}
        case "by_key_head":
            return {"in_proj_qkvz": mixer.conv_channels + values, "in_proj_ba": 2 * heads}
        case "one_by_one":
            inputs = {"q_proj": keys, "k_proj": keys, "v_proj": values}
            return {**inputs, "g_proj": values, "b_proj": heads, "a_proj": heads}


def gated_delta_convolutions(mixer: GatedDelta) -> dict[str, int]:
    """Convolutions: names in the checkpoint, and numbers of channels."""
    if mixer.form != "one_by_one":
        return {"conv1d": mixer.conv_channels}
    keys = mixer.num_key_heads * mixer.key_dim
    return dict(zip(CONVOLUTIONS, (keys, keys, mixer.num_value_heads * mixer.value_dim), strict=True))


def gated_delta_ends(mixer: GatedDelta) -> tuple[str, str]:
    """Names of the norm of its outputs, and of the projection of what it returns."""
    return ("o_norm", "o_proj") if mixer.form == "one_by_one" else ("norm", "out_proj")


def _kimi_delta(hidden: int, mixer: KimiDelta) -> Iterator[Tensor]:
    rank, width = mixer.rank, mixer.num_heads * mixer.head_dim
    for name, size in kimi_delta_parts(mixer).items():
        yield from linear_tensors(f"self_attn.{name}", size, hidden)
    for name in CONVOLUTIONS:
        yield Tensor(f"self_attn.{name}.weight", (width, 1, mixer.conv_width))
    for name in KIMI_EXPANSIONS:
        if rank:
            yield from linear_tensors(f"self_attn.{name}", width, rank)
    yield Tensor("self_attn.dt_bias", (width,))
    yield Tensor("self_attn.A_log", kimi_rates_shape(mixer))
    yield Tensor("self_attn.o_norm.weight", (mixer.head_dim,))
    yield from linear_tensors("self_attn.o_proj", hidden, width)


def kimi_delta_parts(mixer: KimiDelta) -> dict[str, int]:
    """Projections of the mixer's input: names in the checkpoint, and numbers of outputs."""
    rank, width = mixer.rank, mixer.num_heads * mixer.head_dim
    own = {"f_a_proj": rank, "g_a_proj": rank} if rank else {"f_proj": width, "g_proj": width}
    return {**dict.fromkeys(QKV, width), **own, "b_proj": mixer.num_heads}


def kimi_rates_shape(mixer: KimiDelta) -> tuple[int, ...]:
    """Shape of `A_log`, which Kimi Linear, with compressed decays, stores as it is multiplied."""
    return (1, 1, mixer.num_heads, 1) if mixer.rank else (mixer.num_heads,)


def _mamba(hidden: int, mixer: Mamba) -> Iterator[Tensor]:
    yield from linear_tensors("mamba.in_proj", 2 * mixer.width, hidden, mixer.has_bias)
    yield Tensor("mamba.conv1d.weight", (mixer.width, 1, mixer.conv_width))
    if mixer.has_conv_bias:
        yield Tensor("mamba.conv1d.bias", (mixer.width,))
    if mixer.num_heads is not None:
        yield from _mamba_heads(mixer, mixer.num_heads)
        yield from linear_tensors("mamba.out_proj", hidden, mixer.width, mixer.has_bias)
        return
    parts = mamba_parts(mixer)
    # Not quantised: they are small, and an error of a time step grows in an exponential.
    yield Tensor("mamba.x_proj.weight", (sum(parts), mixer.width))
    yield Tensor("mamba.dt_proj.weight", (mixer.width, mixer.step_rank))
    yield Tensor("mamba.dt_proj.bias", (mixer.width,))
    if mixer.norm == "weighted":
        for name, size in zip(MAMBA_NORMS, parts, strict=True):
            yield Tensor(f"mamba.{name}.weight", (size,))
    yield Tensor("mamba.A_log", (mixer.width, mixer.state_size))
    yield Tensor("mamba.D", (mixer.width,))
    yield from linear_tensors("mamba.out_proj", hidden, mixer.width, mixer.has_bias)


def _mamba_heads(mixer: Mamba, heads: int) -> Iterator[Tensor]:
    """Projections and vectors of a mixer with heads, whose checkpoint has one tensor for all of them."""
    size = mixer.width // heads
    yield Tensor("mamba.x_proj_weight", (heads, sum(mamba_parts(mixer)), size))
    yield Tensor("mamba.dt_proj_weight", (heads, size, mixer.step_rank))
    yield Tensor("mamba.dt_proj_bias", (heads, size))
    yield Tensor("mamba.A_log", (heads, size, mixer.state_size))
    yield Tensor("mamba.D", (heads, size))


def mamba_parts(mixer: Mamba) -> tuple[int, int, int]:
    """Rows of its `x_proj`: the compressed time steps, B and C."""
    return mixer.step_rank, mixer.state_size, mixer.state_size


def lightning_parts(mixer: LightningAttention) -> dict[str, int]:
    """Projections of the mixer's input: names in the checkpoint, and numbers of outputs."""
    return {"qkv_proj": 3 * mixer.width, "output_gate": mixer.width}


def _rg_lru(hidden: int, mixer: RgLru) -> Iterator[Tensor]:
    for name in RG_LRU_INPUTS:
        yield from linear_tensors(f"recurrent.{name}", mixer.width, hidden, has_bias=True)
    yield Tensor("recurrent.conv_1d.weight", (mixer.width, 1, mixer.conv_width))
    yield Tensor("recurrent.conv_1d.bias", (mixer.width,))
    yield Tensor("recurrent.rg_lru.recurrent_param", (mixer.width,))
    for name in RG_LRU_GATES:  # a small matrix of each head
        yield Tensor(f"recurrent.rg_lru.{name}_weight", (mixer.num_heads, mixer.head_dim, mixer.head_dim))
        yield Tensor(f"recurrent.rg_lru.{name}_bias", (mixer.num_heads, mixer.head_dim))
    yield from linear_tensors("recurrent.linear_out", hidden, mixer.width, has_bias=True)


def _mamba2(hidden: int, mixer: Mamba2) -> Iterator[Tensor]:
    yield from linear_tensors("mamba.in_proj", sum(mamba2_parts(mixer)), hidden, mixer.has_bias)
    yield Tensor("mamba.conv1d.weight", (mixer.conv_channels, 1, mixer.conv_width))
    if mixer.has_conv_bias:
        yield Tensor("mamba.conv1d.bias", (mixer.conv_channels,))
    for name in ("A_log", "D", "dt_bias"):
        yield Tensor(f"mamba.{name}", (mixer.num_heads,))
    if mixer.norm != "none":
        yield Tensor("mamba.norm.weight", (mixer.width,))
    yield from linear_tensors("mamba.out_proj", hidden, mixer.width, mixer.has_out_bias)


def mamba2_parts(mixer: Mamba2) -> tuple[int, int, int, int, int]:
    """Rows of its `in_proj`: the gates, the inputs, B, C, and the time steps."""
    shared = mixer.num_groups * mixer.state_size
    return mixer.width, mixer.width, shared, shared, mixer.num_heads
