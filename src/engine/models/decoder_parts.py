"""DecoderParts: makes the layers of a Decoder, the embedding before them, and what each layer gets of a token."""

from __future__ import annotations

from ...model.activations import HIDDEN_ACTS
from ...model.gated_residual import GatedResidual as GatedResidualSpec
from ...model.mixers import Attention
from ...model.ngrams import NGrams as NGramsSpec
from ...model.spec import LayerInput as LayerInputSpec
from ...model.spec import LayerSpec
from ...model.tensors import (
    CONNECTIONS,
    CONNECTIONS_HEAD,
    EMBEDDING_NORM,
    FEED_FORWARD_STREAMS,
    FINAL_NORM,
    FINAL_STREAMS,
    INPUT_GATE,
    INPUT_NORM,
    INPUT_PROJECTION,
    LAYER_INPUTS,
    LAYER_INPUTS_NORM,
    LAYER_INPUTS_PROJECTION,
    MIXER_STREAMS,
    NGRAM_NORMS,
    NGRAM_PROJECTIONS,
    NGRAM_TABLE,
    NORM_GATE,
    POSITIONS,
    STREAM_NORM,
    TOKEN_TYPES,
    layer_norms,
)
from ..layers.embedding import Embedding, EmbeddingPart, Sines, TiedEmbedding, rounded
from ..layers.gated_norm import GatedNorm
from ..layers.gated_residual import GatedResidual, StreamReader
from ..layers.hyper_connections import HyperConnection, StreamsNorm
from ..layers.layer_input import EmbeddingForLayers, LayerInput, LayerInputs
from ..layers.linear import Linear
from ..layers.ngrams import DistantTaps, NGrams, NGramTable
from ..layers.norm import AnyNorm, RMSNorm
from ..layers.vector import Scalar
from .block_parts import BlockParts
from .decoder_layers import DecoderLayer, FeedForwardLayer, HyperLayer, MixerLayer
from .ends import Embed
from .gated_residual_layer import GatedResidualLayer
from .joined_layer import JoinedLayer
from .layer_stack import Layer
from .poolers import PoolerParts


class DecoderParts(BlockParts, PoolerParts):
    """Makes whole layers, and what is before the first of them."""

    def embed(self, output: Linear | None) -> Embed:
        """output: the output layer, to which the embedding may be tied; None of a model without one."""
        spec, kernels, dtype, device = self._spec, self._kernels, self._dtype, self._device
        hidden, multiplier = spec.hidden_size, spec.embedding_scale
        if spec.rounds_embedding_scale:
            multiplier = rounded(multiplier, dtype)
        table: Embedding | TiedEmbedding
        if spec.is_tied and output is not None:
            table = TiedEmbedding(output, kernels, multiplier)
        else:
            table = Embedding("model.embed_tokens", spec.vocab_size, hidden, kernels, dtype, device, multiplier)
        positions: Embedding | Sines | None = None
        rows, offset = spec.max_position_embeddings + spec.position_offset, spec.position_offset
        if spec.has_sine_positions:
            positions = Sines(rows, hidden, kernels, dtype, device, offset)
        elif spec.has_position_table:
            positions = Embedding(POSITIONS, rows, hidden, kernels, dtype, device, offset=offset)
        tokens = table if self._ranks is None else EmbeddingPart(table, spec.vocab_size, self._ranks)
        norm = self.norm(EMBEDDING_NORM, hidden) if spec.has_embedding_norm else None
        streams = None if spec.hyper_connections is None else spec.hyper_connections.num_streams
        types: Embedding | None = None
        if spec.num_token_types:
            types = Embedding(TOKEN_TYPES, spec.num_token_types, hidden, kernels, dtype, device)
        return Embed(tokens, positions, norm, kernels, streams, types)

    def last_norm(self) -> AnyNorm | StreamReader | None:
        """The norm that heads read, or what makes one vector of several streams; None of a model without it."""
        if (streams := self._spec.gated_residual) is not None:
            return self.stream_reader(FINAL_STREAMS, streams)
        if not self._spec.has_final_norm:
            return None
        hidden = self._spec.hidden_size
        norm = self.norm(FINAL_NORM, hidden)
        if (spec := self._spec.hyper_connections) is None:
            return norm
        return StreamsNorm(norm, self.connection(CONNECTIONS_HEAD, spec.head_shapes(hidden)))

    def gated_norm(self, name: str, rank: int) -> AnyNorm:
        """rank: 0 for a norm without a gate."""
        hidden, norm = self._spec.hidden_size, self.norm(name, self._spec.hidden_size)
        if not rank:
            return norm
        down, up = (
            Linear({f"{name}.{part}": outputs}, inputs, False, self._kernels, self._dtype, self._device)
            for part, outputs, inputs in zip(NORM_GATE, (rank, hidden), (hidden, rank), strict=True)
        )
        return GatedNorm(norm, down, up)

    def connection(self, prefix: str, shapes: dict[str, tuple[int, ...]]) -> HyperConnection:
        spec = self._spec.hyper_connections
        assert spec is not None
        return HyperConnection(prefix, shapes, spec, self._spec.norm.eps, self._dtype, self._device)

    def layer_inputs(self) -> LayerInputs | EmbeddingForLayers | None:
        """Inputs of all layers; None for a model without them."""
        if self._spec.blocks:
            return EmbeddingForLayers(self._spec.num_layers)
        if (spec := self._spec.layer_input) is None:
            return None
        hidden, width, dtype, device = self._spec.hidden_size, spec.width, self._dtype, self._device
        sizes = self._spec.num_layers * width
        prefix, _, name = LAYER_INPUTS_PROJECTION.rpartition(".")
        return LayerInputs(
            Embedding(LAYER_INPUTS, spec.vocab_size, sizes, self._kernels, dtype, device),
            self.linear(prefix, {name: sizes}, hidden, has_bias=False),
            RMSNorm(LAYER_INPUTS_NORM, width, hidden * self._spec.norm.eps, dtype, device),
            rounded(width**0.5, dtype),
            self._kernels,
        )

    def layer(self, index: int) -> Layer:
        prefix, spec = f"model.layers.{index}", self._spec.layers[index]
        if spec.block is not None:
            return self.block_layer(index, spec, spec.block)
        if spec.gated_residual is not None:
            return self.gated_residual_layer(prefix, spec, spec.gated_residual)
        if spec.joins_embedding is not None:
            return self.joined_layer(prefix, spec)
        ranks = spec.norm_gates or (0,) * len(layer_norms(spec))
        norms = [self.gated_norm(f"{prefix}.{name}", rank) for name, rank in zip(layer_norms(spec), ranks, strict=True)]
        mixers = [self.mixer(prefix, each) for each in spec.mixers]
        if self._spec.hyper_connections is not None:
            shapes = self._spec.hyper_connections.shapes(self._spec.hidden_size)
            connections = [self.connection(f"{prefix}.{place}", shapes) for place in CONNECTIONS]
            (mixer,) = mixers
            assert spec.norms == "inputs"
            assert spec.feed_forward is not None
            mlp = self.listed_or_chosen(f"{prefix}.mlp", spec.feed_forward)
            return HyperLayer(connections, norms, mixer, mlp, self._kernels)
        if spec.feed_forward is None:
            return MixerLayer(norms[0], *mixers)
        feed_forward = self.feed_forward(f"{prefix}.mlp", spec.feed_forward)
        if not mixers:
            return FeedForwardLayer(norms[0], feed_forward)
        scalar = Scalar(f"{prefix}.layer_scalar", self._dtype, self._device) if spec.has_scalar else None
        scale, own_input = self._spec.residual_scale, self.layer_input(prefix, spec.input)
        beside = mixers[1] if len(mixers) > 1 else None
        more = beside, own_input, scalar, spec.sum_weights
        return DecoderLayer(spec.norms, norms, mixers[0], feed_forward, self._kernels, scale, *more)

    def gated_residual_layer(self, prefix: str, spec: LayerSpec, streams: GatedResidualSpec) -> GatedResidualLayer:
        assert spec.mixer is not None
        assert spec.feed_forward is not None
        of_mixer, of_mlp = (
            self.gated_residual(f"{prefix}.{name}", streams) for name in (MIXER_STREAMS, FEED_FORWARD_STREAMS)
        )
        ngrams = None if spec.ngrams is None else self.ngrams(prefix, spec.ngrams)
        mixer, mlp = self.mixer(prefix, spec.mixer), self.feed_forward(f"{prefix}.mlp", spec.feed_forward)
        return GatedResidualLayer(of_mixer, mixer, of_mlp, mlp, ngrams)

    def joined_layer(self, prefix: str, spec: LayerSpec) -> JoinedLayer:
        hidden = self._spec.hidden_size
        assert isinstance(spec.mixer, Attention)
        assert spec.feed_forward is not None
        before, after = layer_norms(spec)
        first, second, third = (self.norm(f"{prefix}.{name}", hidden) for name in (before, STREAM_NORM, after))
        mixer = self.attention(f"{prefix}.self_attn", spec.mixer, inputs=2 * hidden)
        mlp, goes_on_normed = self.feed_forward(f"{prefix}.mlp", spec.feed_forward), spec.joins_embedding == "normed"
        return JoinedLayer((first, second, third), mixer, mlp, self._kernels, goes_on_normed=goes_on_normed)

    def stream_reader(self, prefix: str, spec: GatedResidualSpec) -> StreamReader:
        width = self._spec.stream_width
        down, up = (
            self.linear(prefix, {name: outputs}, inputs, has_bias=False)
            for name, outputs, inputs in (
                ("input_mix_weight_down", spec.rank, width),
                ("input_mix_weight_up", width, spec.rank),
            )
        )
        return StreamReader(self.stream_norm(f"{prefix}.hc_norm"), down, up, spec.count, self._kernels)

    def gated_residual(self, prefix: str, spec: GatedResidualSpec) -> GatedResidual:
        rows, width = {f"{prefix}.block_inject_weight": spec.count}, self._spec.stream_width
        weigh = Linear(rows, width, False, self._kernels, self._dtype, self._device)
        return GatedResidual(self.stream_reader(prefix, spec), weigh, spec.count, self._kernels)

    def stream_norm(self, name: str) -> RMSNorm:
        norm = self.norm(name, self._spec.stream_width)
        assert isinstance(norm, RMSNorm)
        return norm

    def ngrams(self, prefix: str, spec: NGramsSpec) -> NGrams:
        dtype, device, hidden = self._dtype, self._device, self._spec.hidden_size
        of_keys, of_queries, of_inputs = (self.stream_norm(f"{prefix}.{name}") for name in NGRAM_NORMS)
        key_proj, value_proj = (  # of each row of the tables, ranks have a part: what they compute is added
            self.linear(prefix, {name: outputs}, spec.width, has_bias=False, finish=self._sum)
            for name, outputs in zip(NGRAM_PROJECTIONS, (spec.channels, hidden), strict=True)
        )
        taps = DistantTaps(f"{prefix}.ple.conv1d.weight", spec.channels, spec.conv_width, spec.size, dtype, device)
        return NGrams(
            spec,
            NGramTable(f"{prefix}.{NGRAM_TABLE}", spec.rows_of_files, spec.row_width, dtype, device),
            key_proj,
            value_proj,
            (of_keys, of_queries, of_inputs),
            taps,
            device,
            self._kernels,
        )

    def layer_input(self, prefix: str, spec: LayerInputSpec | None) -> LayerInput | None:
        if spec is None:
            return None
        hidden, norm = self._spec.hidden_size, self._spec.norm
        return LayerInput(
            self.linear(prefix, {INPUT_GATE: spec.width}, hidden, has_bias=False),
            self.linear(prefix, {INPUT_PROJECTION: hidden}, spec.width, has_bias=False),
            self._norm(norm.model_copy(update={"eps": 2 * norm.eps}), f"{prefix}.{INPUT_NORM}", hidden),
            HIDDEN_ACTS[spec.activation],
            self._kernels,
        )
