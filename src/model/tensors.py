"""The tensors of a model's checkpoint, by its layers.

For models that the engine runs these are the names it reads (engine/models/decoder.py). Other models have as many
elements in them, under the names that most checkpoints use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .feed_forwards import MLP, Experts
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
from .ngrams import NGrams
from .spec import LayerSpec, ModelSpec, NormPlaces, SharedBlock
from .streams import GatedStreams

CONVOLUTIONS = ("q_conv1d", "k_conv1d", "v_conv1d")  # of queries, keys and values
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "index_proj": ("wk", "weights_proj"),
    "in_proj_qkvzba": ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
    "in_proj_by_head": ("in_proj_qkvz", "in_proj_ba"),
    "conv1d": CONVOLUTIONS,
}
HEAD_GATES = "g_proj"
EXPERT_LISTS = "mlp.gate.tid2eid"  # whole numbers: the experts of each token id
COMPRESSORS = ("compressor", "compressor.indexer")  # of attention, and of the index that chooses its vectors
RG_LRU_INPUTS, RG_LRU_GATES = ("linear_x", "linear_y"), ("input_gate", "recurrent_gate")
LAMBDAS = "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"  # of differential attention
BLOCK_INDEX = "indexer.index_qk_proj"  # the queries of an index of blocks, and its key
UNBIASED = (HEAD_GATES, BLOCK_INDEX)  # projections without a bias where others have one
KIMI_EXPANSIONS = ("f_b_proj", "g_b_proj")  # of decays and of gates
EMBEDDING, OUTPUT, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm"
POSITIONS, EMBEDDING_NORM = "model.embed_positions", "model.embed_norm"
LAYER_INPUTS = "model.embed_tokens_per_layer"  # the table
LAYER_INPUTS_PROJECTION, LAYER_INPUTS_NORM = "model.per_layer_model_projection", "model.per_layer_projection_norm"
INPUT_GATE, INPUT_PROJECTION, INPUT_NORM = "per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm"
# of the output of an MLP beside experts, of the experts' input, of their output
NORMS_BESIDE = ("post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2")
NORM_GATE = "W_down", "W_up"  # of a norm's gate, to its rank and back
SHARED_BLOCK = "shared_transformer"  # the place of a block's weights in the first layer that has it
BLOCK_NORMS = "input_layernorm", "pre_feedforward_layernorm"  # of a shared block
ADAPTERS = "adapters"  # of a layer, for the products of the weights that it shares
MAMBA_NORMS = "dt_layernorm", "b_layernorm", "c_layernorm"  # of the compressed time steps, B and C
CONNECTIONS, CONNECTIONS_HEAD = ("attn_hc", "ffn_hc"), "model.hc_head"  # of the mixer, of the feed-forward block
LAYER_NORMS: dict[NormPlaces, tuple[str, ...]] = {
    "inputs": ("input_layernorm", "post_attention_layernorm"),
    "outputs": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "both": (
        *("input_layernorm", "post_attention_layernorm"),
        *("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ),
    "common": ("input_layernorm",),
    "parallel": ("input_layernorm", "post_attention_layernorm"),
    "stream": ("input_layernorm", "post_attention_layernorm"),
    "sums": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "streams": (),
}
# of several streams: the gates by which the mixer reads them, the feed-forward block, and the output layer
MIXER_STREAMS, FEED_FORWARD_STREAMS, FINAL_STREAMS = (
    *("attn_hyper_connection", "mlp_hyper_connection"),
    "model.hyper_connection_mixer",
)
NGRAM_TABLE = "ple.ple_embedding.ngram_embedding"
NGRAM_PROJECTIONS = "ple.key_proj", "ple.value_proj"
NGRAM_NORMS = "ple.norm_key", "ple.norm_query", "ple.norm_conv"


@dataclass(frozen=True, slots=True)
class Tensor:
    """copies: how many there are, one per expert or head, whose number takes the place of `{}`.

    used: how many a token needs.
    is_matrix: of a linear layer, whose weights can be quantised: [outputs, inputs].
    """

    name: str
    shape: tuple[int, ...]
    is_matrix: bool = False
    copies: int = 1
    used: int = 1

    @property
    def size(self) -> int:
        """Elements of one copy."""
        return math.prod(self.shape)


def model_tensors(spec: ModelSpec) -> Iterator[Tensor]:
    """All tensors of a model, tied embeddings once."""
    yield from outer_tensors(spec)
    for index, layer in enumerate(spec.layers):
        for tensor in layer_tensors(spec, layer):
            yield replace(tensor, name=f"model.layers.{index}.{tensor.name}")


def model_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor, each expert's too."""
    return {
        tensor.name.replace("{}", str(copy)): tensor.shape
        for tensor in model_tensors(spec)
        for copy in range(tensor.copies)
    }


def outer_tensors(spec: ModelSpec) -> Iterator[Tensor]:
    """Tensors outside of the layers."""
    table = (spec.vocab_size, spec.hidden_size)
    yield Tensor(EMBEDDING, table)
    if spec.has_position_table and not spec.has_sine_positions:
        rows = spec.max_position_embeddings + spec.position_offset
        yield Tensor(f"{POSITIONS}.weight", (rows, spec.hidden_size))
    if spec.has_embedding_norm:
        yield from _norm(spec, EMBEDDING_NORM)
    if spec.streams is not None:
        yield from _streams(FINAL_STREAMS, spec.stream_width, spec.streams)
    elif spec.has_final_norm:
        yield from _norm(spec, FINAL_NORM)
    if spec.layer_input is not None:
        width = spec.layer_input.width
        yield Tensor(f"{LAYER_INPUTS}.weight", (spec.layer_input.vocab_size, spec.num_layers * width))
        yield from _linear(LAYER_INPUTS_PROJECTION, spec.num_layers * width, spec.hidden_size)
        yield Tensor(f"{LAYER_INPUTS_NORM}.weight", (width,))
    if spec.hyper_connections is not None and spec.hyper_connections.has_head:
        for name, shape in spec.hyper_connections.head_shapes(spec.hidden_size).items():
            yield Tensor(f"{CONNECTIONS_HEAD}.{name}", shape)
    if not spec.is_tied:
        yield Tensor(OUTPUT, table)
    if spec.has_output_bias:
        yield Tensor("lm_head.bias", (spec.vocab_size,))


def layer_norms(layer: LayerSpec) -> tuple[str, ...]:
    """Names of the norms in the order of their use: LAYER_NORMS, or the first of them in a layer of one part."""
    names = LAYER_NORMS[layer.norms]
    return names if layer.mixer and layer.feed_forward and layer.block is None else names[:1]


def layer_tensors(spec: ModelSpec, layer: LayerSpec) -> Iterator[Tensor]:
    """Tensors of a layer, whose names are relative to the layer."""
    hidden = spec.hidden_size
    for name in layer_norms(layer):
        yield from _norm(spec, name)
    for name, rank in zip(layer_norms(layer), layer.norm_gates, strict=False):
        if rank:  # not quantised: they are small
            yield Tensor(f"{name}.{NORM_GATE[0]}.weight", (rank, hidden))
            yield Tensor(f"{name}.{NORM_GATE[1]}.weight", (hidden, rank))
    if layer.has_scalar:
        yield Tensor("layer_scalar", (1,))
    if layer.input is not None:
        yield from _linear(INPUT_GATE, layer.input.width, hidden)
        yield from _linear(INPUT_PROJECTION, hidden, layer.input.width)
        yield from _norm(spec, INPUT_NORM)
    if spec.hyper_connections is not None:
        for place in CONNECTIONS:
            for name, shape in spec.hyper_connections.shapes(hidden).items():
                yield Tensor(f"{place}.{name}", shape)
    if layer.streams is not None:
        for name in (MIXER_STREAMS, FEED_FORWARD_STREAMS):
            yield from _streams(name, spec.stream_width, layer.streams)
            # Not quantised: it has a row for each stream.
            yield Tensor(f"{name}.block_inject_weight.weight", (layer.streams.count, spec.stream_width))
    if layer.ngrams is not None:
        yield from _ngrams(hidden, layer.ngrams)
    if layer.block is not None:
        yield from _around_block(spec, layer, layer.block)
        return
    for mixer in layer.mixers:
        yield from _mixer(hidden, mixer)
    match layer.feed_forward:
        case MLP() as mlp:
            yield from _mlp("mlp", hidden, mlp)
        case Experts() as experts:
            yield from _experts(hidden, experts)


def _around_block(spec: ModelSpec, layer: LayerSpec, block: SharedBlock) -> Iterator[Tensor]:
    """Tensors of a layer with a shared block, besides its norm."""
    hidden, attention, mlp = spec.hidden_size, layer.mixer, layer.feed_forward
    assert isinstance(attention, Attention)
    assert isinstance(mlp, MLP)
    assert layer.beside is not None
    yield from _mixer(hidden, layer.beside)
    yield from _linear("linear", hidden, hidden)
    for name, (outputs, inputs) in adapter_sizes(hidden, layer).items():  # as small as those of Mamba's time steps
        yield Tensor(f"{ADAPTERS}.{name}.0.weight", (block.adapter_rank, inputs))
        yield Tensor(f"{ADAPTERS}.{name}.1.weight", (outputs, block.adapter_rank))
    if block.weights_of is None:
        first, second = BLOCK_NORMS
        own = [Tensor(f"{first}.weight", (2 * hidden,)), Tensor(f"{second}.weight", (hidden,))]
        for tensor in (*own, *_attention(hidden, attention, 2 * hidden), *_mlp("mlp", hidden, mlp)):
            yield replace(tensor, name=f"{SHARED_BLOCK}.{tensor.name}")


def adapter_sizes(hidden: int, layer: LayerSpec) -> dict[str, tuple[int, int]]:
    """Numbers of outputs and inputs of the adapters of a layer with a shared block, by the name of what they adapt."""
    assert layer.block is not None
    assert isinstance(layer.mixer, Attention)
    assert isinstance(layer.feed_forward, MLP)
    if not layer.block.adapter_rank:
        return {}
    parts = attention_parts(layer.mixer) if layer.block.adapts_attention else {}
    attention = {name: (outputs, 2 * hidden) for name, outputs in parts.items()}
    return {**attention, "gate_up_proj": (2 * layer.feed_forward.width, hidden)}


def _mixer(hidden: int, mixer: Mixer) -> Iterator[Tensor]:
    match mixer:
        case Attention():
            yield from _attention(hidden, mixer)
        case CrossAttention():
            queries, keys = mixer.num_heads * mixer.head_dim, mixer.num_kv_heads * mixer.head_dim
            yield from _linear("cross_attn.q_proj", queries, hidden)
            yield from _linear("cross_attn.k_proj", keys, hidden)
            yield from _linear("cross_attn.v_proj", keys, hidden)
            yield from _linear("cross_attn.o_proj", hidden, queries)
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
            yield from _linear("conv.in_proj", 3 * mixer.width, hidden, mixer.has_bias)
            yield Tensor("conv.conv.weight", (mixer.width, 1, mixer.conv_width))
            if mixer.has_bias:
                yield Tensor("conv.conv.bias", (mixer.width,))
            yield from _linear("conv.out_proj", hidden, mixer.width, mixer.has_bias)
        case LightningAttention():
            for name, size in lightning_parts(mixer).items():
                yield from _linear(f"self_attn.{name}", size, hidden)
            yield Tensor("self_attn.norm.weight", (mixer.width,))
            yield from _linear("self_attn.out_proj", hidden, mixer.width)


def _norm(spec: ModelSpec, name: str) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (spec.hidden_size,))
    if spec.norm.has_bias:
        yield Tensor(f"{name}.bias", (spec.hidden_size,))


def _streams(name: str, width: int, streams: GatedStreams) -> Iterator[Tensor]:
    yield Tensor(f"{name}.hc_norm.weight", (width,))
    yield from _linear(f"{name}.input_mix_weight_down", streams.rank, width)
    yield from _linear(f"{name}.input_mix_weight_up", width, streams.rank)


def _ngrams(hidden: int, ngrams: NGrams) -> Iterator[Tensor]:
    for index, rows in enumerate(ngrams.rows_of_files):
        yield Tensor(f"{NGRAM_TABLE}.shard_{index}.weight", (rows, ngrams.row_width), used=0)
    for name, outputs in zip(NGRAM_PROJECTIONS, (ngrams.channels, hidden), strict=True):
        yield from _linear(name, outputs, ngrams.width)
    for name in NGRAM_NORMS:
        yield Tensor(f"{name}.weight", (ngrams.channels,))
    yield Tensor("ple.conv1d.weight", (ngrams.channels, 1, ngrams.conv_width))


def _attention(hidden: int, mixer: Attention, inputs: int | None = None) -> Iterator[Tensor]:
    for name, size in attention_parts(mixer).items():
        yield from _linear(f"self_attn.{name}", size, inputs or hidden, mixer.has_bias and name not in UNBIASED)
    if mixer.index is not None:
        yield Tensor("self_attn.indexer.q_layernorm.weight", (mixer.index.dim,))
        yield Tensor("self_attn.indexer.k_layernorm.weight", (mixer.index.dim,))
    yield from _linear("self_attn.o_proj", hidden, mixer.num_heads * mixer.output_dim, mixer.has_out_bias)
    if mixer.head_norm not in ("none", "bare_after_rope"):
        yield _head_norm("self_attn.q_norm", mixer, mixer.num_heads)
        if mixer.keys_of is None:
            yield _head_norm("self_attn.k_norm", mixer, mixer.num_kv_heads)
    if mixer.has_sinks:
        yield Tensor("self_attn.sinks", (mixer.num_heads,))
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
    sizes = {**dict(zip(FUSED["qkv_proj"], (queries, keys, values), strict=True))}
    if mixer.gate == "head":
        sizes[HEAD_GATES] = mixer.num_heads
    if mixer.index is not None:
        sizes[BLOCK_INDEX] = (mixer.index.heads + 1) * mixer.index.dim
    return {name: size for name, size in sizes.items() if size}


def unused_tensors(spec: ModelSpec) -> tuple[str, ...]:
    """Beginnings of the names of tensors that checkpoints may have although no layer reads them."""
    parts = "k_proj.", "v_proj.", "k_norm.", "v_norm."
    reads = [index for index, source in enumerate(spec.keys_of) if source is not None]
    shared = [index for index, block in spec.blocks.items() if block.weights_of is not None]  # copies
    return (
        *(f"model.layers.{index}.self_attn.{part}" for index in reads for part in parts),
        *(f"model.layers.{index}.{part}." for index in shared for part in (SHARED_BLOCK, ADAPTERS)),
    )


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
        yield from _linear("self_attn.q_a_proj", mixer.query_rank, hidden, mixer.has_bias)
        yield Tensor("self_attn.q_a_layernorm.weight", (mixer.query_rank,))
        if mixer.gate == "with_queries":
            yield from _linear("self_attn.q_b_proj", queries + mixer.num_gates, 2 * mixer.query_rank)
        else:
            yield from _linear("self_attn.q_b_proj", queries, mixer.query_rank)
    else:
        yield from _linear("self_attn.q_proj", queries, hidden)
    if mixer.num_gates and mixer.gate != "with_queries":
        yield from _linear(f"self_attn.{HEAD_GATES}", mixer.num_gates, hidden)
    if mixer.has_sinks:
        yield Tensor("self_attn.sinks", (mixer.num_heads,))
    yield from _linear("self_attn.kv_a_proj_with_mqa", mixer.rank + mixer.rope_dim, hidden, mixer.has_bias)
    yield Tensor("self_attn.kv_a_layernorm.weight", (mixer.rank,))
    heads = mixer.num_heads * (mixer.plain_dim + mixer.value_dim)  # a matrix of each head, unless it is expanded
    yield Tensor("self_attn.kv_b_proj.weight", (heads, mixer.rank), is_matrix=mixer.is_expanded)
    yield from _linear("self_attn.o_proj", hidden, mixer.num_heads * mixer.value_dim, mixer.has_bias)
    if mixer.index_heads and not mixer.shares_index:
        inputs = mixer.query_rank or hidden
        yield from _linear("self_attn.indexer.wq_b", mixer.index_heads * mixer.index_dim, inputs)
        yield from _linear("self_attn.indexer.wk", mixer.index_dim, hidden)
        yield from _linear("self_attn.indexer.weights_proj", mixer.index_heads, hidden)
        yield Tensor("self_attn.indexer.k_norm.weight", (mixer.index_dim,))
        yield Tensor("self_attn.indexer.k_norm.bias", (mixer.index_dim,))


def _compressed(hidden: int, mixer: CompressedAttention) -> Iterator[Tensor]:
    for name, size in compressed_parts(mixer).items():
        yield from _linear(f"self_attn.{name}", size, hidden)
    yield Tensor("self_attn.q_a_norm.weight", (mixer.query_rank,))
    yield from _linear("self_attn.q_b_proj", mixer.num_heads * mixer.head_dim, mixer.query_rank)
    yield Tensor("self_attn.kv_norm.weight", (mixer.head_dim,))
    yield Tensor("self_attn.sinks", (mixer.num_heads,))
    for prefix, width in zip(COMPRESSORS, mixer.input_widths, strict=False):
        yield Tensor(f"self_attn.{prefix}.position_bias", (mixer.rate, width))
        yield Tensor(f"self_attn.{prefix}.kv_norm.weight", (width // (1 + mixer.overlaps),))
    if mixer.index_heads:
        queries = mixer.index_heads * mixer.index_dim
        yield from _linear(f"self_attn.{COMPRESSORS[1]}.q_b_proj", queries, mixer.query_rank)
    groups, rank = mixer.out_groups, mixer.out_rank
    yield Tensor("self_attn.o_a_proj.weight", (groups * rank, mixer.group_width))  # a matrix of each group
    yield from _linear("self_attn.o_b_proj", hidden, groups * rank)


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
        yield from _linear(f"linear_attn.{name}", size, hidden)
    for name, channels in gated_delta_convolutions(mixer).items():
        yield Tensor(f"linear_attn.{name}.weight", (channels, 1, mixer.conv_width))
    yield Tensor("linear_attn.dt_bias", (mixer.num_value_heads,))
    yield Tensor("linear_attn.A_log", (mixer.num_value_heads,))
    yield Tensor(f"linear_attn.{norm}.weight", (mixer.value_dim,))
    yield from _linear(f"linear_attn.{out_proj}", hidden, values)


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
        yield from _linear(f"self_attn.{name}", size, hidden)
    for name in CONVOLUTIONS:
        yield Tensor(f"self_attn.{name}.weight", (width, 1, mixer.conv_width))
    for name in KIMI_EXPANSIONS:
        if rank:
            yield from _linear(f"self_attn.{name}", width, rank)
    yield Tensor("self_attn.dt_bias", (width,))
    yield Tensor("self_attn.A_log", kimi_rates_shape(mixer))
    yield Tensor("self_attn.o_norm.weight", (mixer.head_dim,))
    yield from _linear("self_attn.o_proj", hidden, width)


def kimi_delta_parts(mixer: KimiDelta) -> dict[str, int]:
    """Projections of the mixer's input: names in the checkpoint, and numbers of outputs."""
    rank, width = mixer.rank, mixer.num_heads * mixer.head_dim
    own = {"f_a_proj": rank, "g_a_proj": rank} if rank else {"f_proj": width, "g_proj": width}
    return {**dict.fromkeys(FUSED["qkv_proj"], width), **own, "b_proj": mixer.num_heads}


def kimi_rates_shape(mixer: KimiDelta) -> tuple[int, ...]:
    """Shape of `A_log`, which Kimi Linear, with compressed decays, stores as it is multiplied."""
    return (1, 1, mixer.num_heads, 1) if mixer.rank else (mixer.num_heads,)


def _mamba(hidden: int, mixer: Mamba) -> Iterator[Tensor]:
    yield from _linear("mamba.in_proj", 2 * mixer.width, hidden, mixer.has_bias)
    yield Tensor("mamba.conv1d.weight", (mixer.width, 1, mixer.conv_width))
    if mixer.has_conv_bias:
        yield Tensor("mamba.conv1d.bias", (mixer.width,))
    if mixer.num_heads is not None:
        yield from _mamba_heads(mixer, mixer.num_heads)
        yield from _linear("mamba.out_proj", hidden, mixer.width, mixer.has_bias)
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
    yield from _linear("mamba.out_proj", hidden, mixer.width, mixer.has_bias)


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
        yield from _linear(f"recurrent.{name}", mixer.width, hidden, has_bias=True)
    yield Tensor("recurrent.conv_1d.weight", (mixer.width, 1, mixer.conv_width))
    yield Tensor("recurrent.conv_1d.bias", (mixer.width,))
    yield Tensor("recurrent.rg_lru.recurrent_param", (mixer.width,))
    for name in RG_LRU_GATES:  # a small matrix of each head
        yield Tensor(f"recurrent.rg_lru.{name}_weight", (mixer.num_heads, mixer.head_dim, mixer.head_dim))
        yield Tensor(f"recurrent.rg_lru.{name}_bias", (mixer.num_heads, mixer.head_dim))
    yield from _linear("recurrent.linear_out", hidden, mixer.width, has_bias=True)


def _mamba2(hidden: int, mixer: Mamba2) -> Iterator[Tensor]:
    yield from _linear("mamba.in_proj", sum(mamba2_parts(mixer)), hidden, mixer.has_bias)
    yield Tensor("mamba.conv1d.weight", (mixer.conv_channels, 1, mixer.conv_width))
    if mixer.has_conv_bias:
        yield Tensor("mamba.conv1d.bias", (mixer.conv_channels,))
    for name in ("A_log", "D", "dt_bias"):
        yield Tensor(f"mamba.{name}", (mixer.num_heads,))
    if mixer.norm != "none":
        yield Tensor("mamba.norm.weight", (mixer.width,))
    yield from _linear("mamba.out_proj", hidden, mixer.width, mixer.has_out_bias)


def mamba2_parts(mixer: Mamba2) -> tuple[int, int, int, int, int]:
    """Rows of its `in_proj`: the gates, the inputs, B, C, and the time steps."""
    shared = mixer.num_groups * mixer.state_size
    return mixer.width, mixer.width, shared, shared, mixer.num_heads


def _mlp(name: str, hidden: int, mlp: MLP) -> Iterator[Tensor]:
    if mlp.is_gated:
        yield from _linear(f"{name}.gate_proj", mlp.width, hidden, mlp.has_bias)
    yield from _linear(f"{name}.up_proj", mlp.width, hidden, mlp.has_bias)
    yield from _linear(f"{name}.down_proj", hidden, mlp.width, mlp.has_bias)


def _experts(hidden: int, experts: Experts) -> Iterator[Tensor]:
    yield Tensor("mlp.gate.weight", (experts.count, hidden))
    if experts.has_router_bias:
        yield Tensor("mlp.gate.bias", (experts.count,))
    if experts.routing.has_correction:
        yield Tensor("mlp.gate.e_score_correction_bias", (experts.count,))
    if experts.listed_tokens:
        yield Tensor(EXPERT_LISTS, (experts.listed_tokens, experts.per_token))
    one = MLP(width=experts.width, is_gated=experts.is_gated, has_bias=experts.has_bias)
    for tensor in _mlp("mlp.experts.{}", hidden, one):
        yield replace(tensor, copies=experts.held or experts.count, used=experts.per_token)
    if experts.shared_width:
        yield from _mlp("mlp.shared_experts", hidden, MLP(width=experts.shared_width, is_gated=experts.is_gated))
    if experts.has_shared_gate:
        yield Tensor("mlp.shared_expert_gate.weight", (1, hidden))
    if experts.has_router_norm:
        yield Tensor("mlp.gate.norm.weight", (hidden,))
    if experts.has_scales:
        yield Tensor("mlp.expert_scales", (experts.count,))
    if experts.beside is not None:
        yield from _mlp("mlp", hidden, experts.beside)
        for name in NORMS_BESIDE:
            yield Tensor(f"{name}.weight", (hidden,))


def _linear(name: str, outputs: int, inputs: int, has_bias: bool = False) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (outputs, inputs), is_matrix=True)
    if has_bias:
        yield Tensor(f"{name}.bias", (outputs,))
