"""The tensors of a model's checkpoint, by its layers.

For models that the engine runs these are the names it reads (engine/models/decoder.py). Other models have as many
elements in them, under the names that most checkpoints use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .feed_forwards import MLP, Experts
from .gated_residual import GatedResidual
from .mixer_tensors import CONVOLUTIONS, QKV, attention_parts, attention_tensors, mixer_tensors
from .mixers import Attention
from .ngrams import NGrams
from .spec import LayerSpec, ModelSpec, NormPlaces, SharedBlock
from .tensor import Tensor, linear_tensors

FUSED = {
    "qkv_proj": QKV,
    "up_gate_proj": ("up_proj", "gate_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "index_proj": ("wk", "weights_proj"),
    "in_proj_qkvzba": ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
    "in_proj_by_head": ("in_proj_qkvz", "in_proj_ba"),
    "conv1d": CONVOLUTIONS,
}
EXPERT_LISTS = "mlp.gate.tid2eid"  # whole numbers: the experts of each token id
EMBEDDING, OUTPUT, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm"
POSITIONS, EMBEDDING_NORM = "model.embed_positions", "model.embed_norm"
TOKEN_TYPES = "model.embed_types"
LAYER_INPUTS = "model.embed_tokens_per_layer"  # the table
LAYER_INPUTS_PROJECTION, LAYER_INPUTS_NORM = "model.per_layer_model_projection", "model.per_layer_projection_norm"
INPUT_GATE, INPUT_PROJECTION, INPUT_NORM = "per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm"
# of the output of an MLP beside experts, of the experts' input, of their output
NORMS_BESIDE = ("post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2")
NORM_GATE = "W_down", "W_up"  # of a norm's gate, to its rank and back
SHARED_BLOCK = "shared_transformer"  # the place of a block's weights in the first layer that has it
BLOCK_NORMS = "input_layernorm", "pre_feedforward_layernorm"  # of a shared block
ADAPTERS = "adapters"  # of a layer, for the products of the weights that it shares
STREAM_NORM = "hidden_norm"  # of the stream, where the layer's input has the embedding beside it
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
    "gated_residual": (),
    "feed_forward": ("post_attention_layernorm",),
}
# of several streams: the gates by which the mixer reads them, the feed-forward block, and the output layer
MIXER_STREAMS, FEED_FORWARD_STREAMS, FINAL_STREAMS = (
    *("attn_hyper_connection", "mlp_hyper_connection"),
    "model.hyper_connection_mixer",
)
NGRAM_TABLE = "ple.ple_embedding.ngram_embedding"
NGRAM_PROJECTIONS = "ple.key_proj", "ple.value_proj"
NGRAM_NORMS = "ple.norm_key", "ple.norm_query", "ple.norm_conv"


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
    if spec.num_token_types:
        yield Tensor(f"{TOKEN_TYPES}.weight", (spec.num_token_types, spec.hidden_size))
    if spec.has_embedding_norm:
        yield from _norm(spec, EMBEDDING_NORM)
    if spec.gated_residual is not None:
        yield from _gated_residual(FINAL_STREAMS, spec.stream_width, spec.gated_residual)
    elif spec.has_final_norm:
        yield from _norm(spec, FINAL_NORM)
    if spec.layer_input is not None:
        width = spec.layer_input.width
        yield Tensor(f"{LAYER_INPUTS}.weight", (spec.layer_input.vocab_size, spec.num_layers * width))
        yield from linear_tensors(LAYER_INPUTS_PROJECTION, spec.num_layers * width, spec.hidden_size)
        yield Tensor(f"{LAYER_INPUTS_NORM}.weight", (width,))
    if spec.hyper_connections is not None:
        for name, shape in spec.hyper_connections.head_shapes(spec.hidden_size).items():
            yield Tensor(f"{CONNECTIONS_HEAD}.{name}", shape)
    if spec.has_output and not spec.is_tied:
        yield Tensor(OUTPUT, table)
    if spec.has_output_bias:
        yield Tensor("lm_head.bias", (spec.vocab_size,))
    yield from head_tensors(spec)


def head_tensors(spec: ModelSpec) -> Iterator[Tensor]:
    """Tensors of heads that make no tokens. They are not quantised, and computed in float32."""
    for layer in () if spec.pooling is None else spec.pooling.layers:
        yield Tensor(f"{layer.name}.weight", (layer.outputs, layer.inputs))
        if layer.has_bias:
            yield Tensor(f"{layer.name}.bias", (layer.outputs,))
        if layer.norm is not None:
            yield Tensor(f"{layer.norm.name}.weight", (layer.outputs,))
            if layer.norm.has_bias:
                yield Tensor(f"{layer.norm.name}.bias", (layer.outputs,))


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
        yield from linear_tensors(INPUT_GATE, layer.input.width, hidden)
        yield from linear_tensors(INPUT_PROJECTION, hidden, layer.input.width)
        yield from _norm(spec, INPUT_NORM)
    if spec.hyper_connections is not None:
        for place in CONNECTIONS:
            for name, shape in spec.hyper_connections.shapes(hidden).items():
                yield Tensor(f"{place}.{name}", shape)
    if layer.gated_residual is not None:
        for name in (MIXER_STREAMS, FEED_FORWARD_STREAMS):
            yield from _gated_residual(name, spec.stream_width, layer.gated_residual)
            # Not quantised: it has a row for each stream.
            yield Tensor(f"{name}.block_inject_weight.weight", (layer.gated_residual.count, spec.stream_width))
    if layer.ngrams is not None:
        yield from _ngrams(hidden, layer.ngrams)
    if layer.block is not None:
        yield from _around_block(spec, layer, layer.block)
        return
    if layer.joins_embedding is not None:
        assert isinstance(layer.mixer, Attention)
        yield from _norm(spec, STREAM_NORM)
        yield from attention_tensors(hidden, layer.mixer, 2 * hidden)
    else:
        for mixer in layer.mixers:
            yield from mixer_tensors(hidden, mixer)
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
    yield from mixer_tensors(hidden, layer.beside)
    yield from linear_tensors("linear", hidden, hidden)
    for name, (outputs, inputs) in adapter_sizes(hidden, layer).items():  # as small as those of Mamba's time steps
        yield Tensor(f"{ADAPTERS}.{name}.0.weight", (block.adapter_rank, inputs))
        yield Tensor(f"{ADAPTERS}.{name}.1.weight", (outputs, block.adapter_rank))
    if block.weights_of is None:
        first, second = BLOCK_NORMS
        own = [Tensor(f"{first}.weight", (2 * hidden,)), Tensor(f"{second}.weight", (hidden,))]
        for tensor in (*own, *attention_tensors(hidden, attention, 2 * hidden), *_mlp("mlp", hidden, mlp)):
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


def _norm(spec: ModelSpec, name: str) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (spec.hidden_size,))
    if spec.norm.has_bias:
        yield Tensor(f"{name}.bias", (spec.hidden_size,))


def _gated_residual(name: str, width: int, spec: GatedResidual) -> Iterator[Tensor]:
    yield Tensor(f"{name}.hc_norm.weight", (width,))
    yield from linear_tensors(f"{name}.input_mix_weight_down", spec.rank, width)
    yield from linear_tensors(f"{name}.input_mix_weight_up", width, spec.rank)


def _ngrams(hidden: int, ngrams: NGrams) -> Iterator[Tensor]:
    for index, rows in enumerate(ngrams.rows_of_files):
        yield Tensor(f"{NGRAM_TABLE}.shard_{index}.weight", (rows, ngrams.row_width), used=0)
    for name, outputs in zip(NGRAM_PROJECTIONS, (ngrams.channels, hidden), strict=True):
        yield from linear_tensors(name, outputs, ngrams.width)
    for name in NGRAM_NORMS:
        yield Tensor(f"{name}.weight", (ngrams.channels,))
    yield Tensor("ple.conv1d.weight", (ngrams.channels, 1, ngrams.conv_width))


def unused_tensors(spec: ModelSpec) -> tuple[str, ...]:
    """Beginnings of the names of tensors that checkpoints may have although no layer reads them."""
    parts = "k_proj.", "v_proj.", "k_norm.", "v_norm."
    reads = [index for index, source in enumerate(spec.keys_of) if source is not None]
    shared = [index for index, block in spec.blocks.items() if block.weights_of is not None]  # copies
    return (
        *(f"model.layers.{index}.self_attn.{part}" for index in reads for part in parts),
        *(f"model.layers.{index}.{part}." for index in shared for part in (SHARED_BLOCK, ADAPTERS)),
    )


def _mlp(name: str, hidden: int, mlp: MLP) -> Iterator[Tensor]:
    if mlp.is_gated:
        yield from linear_tensors(f"{name}.gate_proj", mlp.width, hidden, mlp.has_bias)
    yield from linear_tensors(f"{name}.up_proj", mlp.width, hidden, mlp.has_bias)
    yield from linear_tensors(f"{name}.down_proj", hidden, mlp.width, mlp.has_bias or mlp.has_down_bias)


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
