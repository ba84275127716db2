"""ModelSpec: a language model as a sequence of layers. Each layer has a mixer, a feed-forward block and norms.

A mixer lets tokens see each other: attention of several kinds, or a recurrent state. Sizes are numbers of elements;
`keeps` is what a cache must hold of the past, `activations` the elements per token while a step is computed.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from .feed_forwards import Experts, FeedForward
from .gated_residual import GatedResidual
from .hyper_connections import HyperConnections
from .mixers import Attention, CompressedAttention, Keeps, LatentAttention, Mixer, Recurrent, StateShape
from .ngrams import NGrams
from .pooling import Pooling
from .record import Record
from .weight_methods import CheckpointMethod


class Norm(Record):
    """rms: x / rms(x) * weight. layer: the mean is subtracted first, arXiv:1607.06450.

    is_offset: the weight is stored as its difference from 1.
    """

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    has_bias: bool = False
    is_offset: bool = False


# Whose names the tensors in the files have: transformers', those of Mistral AI's own format, llama.cpp's
WeightNames = Literal["hf", "mistral", "gguf"]
# What is normed: the inputs of mixer and feed-forward; their outputs; both; the common input of the two, which are
# added at once; an input of each, which are added at once; the stream itself, before each of the two, or after each;
# each of several streams, with the gates by which mixer and feed-forward read them; only the input of the feed-forward
NormPlaces = Literal[
    "inputs", "outputs", "both", "common", "parallel", "stream", "sums", "gated_residual", "feed_forward"
]


class SumWeights(Record):
    """Factors of the stream and of what is added to it, after the mixer and after the feed-forward block."""

    mixer: tuple[float, float] = (1.0, 1.0)
    feed_forward: tuple[float, float] = (1.0, 1.0)


EVEN_SUMS = SumWeights()


class LayerInput(Record):
    """A vector of each token for only this layer, which multiplies a gate of the layer's output (Gemma 4 E2B).

    The vectors of all layers come from a table, and from a projection of the token's embedding.
    """

    width: int
    vocab_size: int  # rows of the table
    activation: str  # of the gate


class SharedBlock(Record):
    """A transformer block before the mixer of a layer, whose weights several layers share: arXiv:2411.15242.

    Its input is the stream beside the embedding of the token. Its output goes through a linear layer, and is added to
    the input of the mixer, but not to the stream. What it adds to the products of the shared weights is of each layer.
    """

    weights_of: int | None = None  # the layer before it that has the weights; None: this one
    adapter_rank: int = 0  # 0: all layers with the block have the same products
    adapts_attention: bool = False  # queries, keys and values too; False: only gates and ups


class LayerSpec(Record):
    """beside: a mixer with a state, which has the input of the other, attention; their outputs are added.
    block: the mixer and the feed-forward block are its, and `beside` comes after it; None: they are the layer's.
    input: its product with a gate is added after the feed-forward block.
    norm_gates: a normed vector x is multiplied by sigmoid(up(silu(down(x)))), with a rank between the two matrices.
    has_scalar: a number in the checkpoint multiplies the output of the layer.
    gated_residual: the residual streams, where there are several that are read with gates.
    ngrams: what is added to the streams before the mixer.
    joins_embedding: the input of attention is the normed embedding of the token beside the normed stream, which goes on
        as it was or normed. Only of layers that draft (drafts.py).
    """

    mixer: Mixer | None = None
    beside: Mixer | None = None
    block: SharedBlock | None = None
    feed_forward: FeedForward | None = None
    norms: NormPlaces = "inputs"
    norm_gates: tuple[int, ...] = ()  # ranks of the gates of the norms, in the order of their use; 0: it has none
    input: LayerInput | None = None
    has_scalar: bool = False
    sum_weights: SumWeights = EVEN_SUMS  # of a layer whose stream is normed
    gated_residual: GatedResidual | None = None
    ngrams: NGrams | None = None
    joins_embedding: Literal["plain", "normed"] | None = None

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        return tuple(mixer for mixer in (self.mixer, self.beside) if mixer is not None)

    @property
    def state(self) -> StateShape | None:
        """What it keeps of a sequence; None without a recurrent state that the engine computes."""
        state = next((each.state for each in self.mixers if isinstance(each, Recurrent)), None)
        if state is None or self.ngrams is None:
            return state
        return state.model_copy(update={"beside": self.ngrams.kept})

    @property
    def has_keys(self) -> bool:
        """Whether it keeps something of each token."""
        return any(each.keeps.kind not in ("state", "nothing") for each in self.mixers)

    @property
    def is_causal(self) -> bool:
        """Whether a token depends on those before it only."""
        return all(each.is_causal for each in self.mixers if isinstance(each, Attention))

    @property
    def keys_of(self) -> int | None:
        """The layer whose keys and values it reads; None if it reads its own, or none."""
        return self.mixer.keys_of if isinstance(self.mixer, Attention) else None

    @property
    def with_own_weights(self) -> LayerSpec:
        """The same layer with the weights that it shares: what a token passes through."""
        if self.block is None or self.block.weights_of is None:
            return self
        return self.model_copy(update={"block": self.block.model_copy(update={"weights_of": None})})


class WeightScale(Record):
    """A tensor whose elements are multiplied by constants when it is read: the multipliers of a checkpoint.

    name: as tensors.py has it, in the layers that have the tensor. parts: numbers of rows and their factors, for all
        rows in order.
    """

    name: str
    parts: tuple[tuple[int, float], ...]


class ModelSpec(Record):
    """assumptions: what config.json does not say and no family implies."""

    architecture: str  # such as Qwen3ForCausalLM
    model_type: str  # such as qwen3
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int  # tokens
    is_tied: bool  # the output layer is the embedding
    has_position_table: bool = False  # positions that are added to the embedding
    has_sine_positions: bool = False  # they are computed; else they are learned
    position_offset: int = 0  # rows of the table before that of the first position
    num_token_types: int = 0  # rows of a table of which one is added to each embedding; 0: there is no table
    has_embedding_norm: bool = False
    has_output_bias: bool = False
    norm: Norm = Norm()
    layers: tuple[LayerSpec, ...]
    hyper_connections: HyperConnections | None = None  # None: the residual stream is one vector
    embedding_scale: float = 1.0
    rounds_embedding_scale: bool = False  # to the dtype of the model
    weight_scales: tuple[WeightScale, ...] = ()
    residual_scale: float = 1.0  # of what a mixer or feed-forward adds
    logits_scale: float = 1.0
    logits_softcap: float | None = None
    dtype: str = "bfloat16"  # that config.json names
    quantization: CheckpointMethod | None = None  # of a quantised checkpoint
    is_part: bool = False  # of a model with encoders
    is_decoder: bool = False  # config.json says so; without it some classes see later tokens too
    weight_names: WeightNames = "hf"
    assumptions: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()  # what config.json says and the engine does not compute
    generates: bool = True  # it has an output layer, and tokens see only those before them
    has_output: bool = True  # an output layer
    pooling: Pooling | None = None  # what it makes of a whole text

    @property
    def has_final_norm(self) -> bool:
        """Whether the stream is normed after the last layer, which it has not normed itself."""
        return not self.layers or self.layers[-1].norms != "sums"

    @property
    def is_causal(self) -> bool:
        """Whether tokens depend on those before them only: else all tokens of a text are computed in one step."""
        return all(layer.is_causal for layer in self.layers)

    @property
    def needs_whole_prompts(self) -> bool:
        """Whether all tokens of each prompt are computed in one step, because nothing of the model could use less."""
        if not self.is_causal:
            return True
        return not self.generates and self.pooling is not None and all(head.needs_all for head in self.pooling.heads)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def gated_residual(self) -> GatedResidual | None:
        """The residual of all layers, where it is several streams that are read with gates."""
        return self.layers[0].gated_residual if self.layers else None

    @property
    def stream_width(self) -> int:
        """Elements of a token between two layers."""
        if self.hyper_connections is not None:
            return self.hidden_size * self.hyper_connections.num_streams
        return self.hidden_size * (1 if self.gated_residual is None else self.gated_residual.count)

    @property
    def has_residual(self) -> bool:
        """Whether what a layer adds can be kept beside the residual stream until the next one."""
        has_streams = self.hyper_connections is not None or self.gated_residual is not None
        return not has_streams and all(layer.norms != "sums" for layer in self.layers)

    @property
    def ngram_size(self) -> int:
        """Tokens of the longest n-gram of which a layer has an embedding; 0 without."""
        return max((layer.ngrams.size for layer in self.layers if layer.ngrams is not None), default=0)

    @property
    def attention(self) -> Attention | None:
        """Attention of the first layer that has one. Latent attention has one if it is expanded."""
        for layer in self.layers:
            if isinstance(layer.mixer, Attention):
                return layer.mixer
            if isinstance(layer.mixer, LatentAttention) and layer.mixer.is_expanded:
                return layer.mixer.expanded
        return None

    @property
    def keeps(self) -> Keeps:
        """What the layer that keeps most of each token keeps of it; the widths of others divide its own."""
        kept = [keeps for keeps in self.kept_by_layer if keeps is not None]
        return max(kept, key=lambda keeps: keeps.width, default=Keeps(kind="full", width=0))

    @property
    def kept_by_layer(self) -> tuple[Keeps | None, ...]:
        """What each layer keeps of each token; None of a layer that keeps nothing of it."""
        kept = [None if layer.mixer is None else layer.mixer.keeps for layer in self.layers]
        return tuple(keeps if keeps is not None and keeps.tensors else None for keeps in kept)

    @property
    def keys_of(self) -> tuple[int | None, ...]:
        """Earlier layer whose keys and values each layer reads."""
        return tuple(layer.keys_of for layer in self.layers)

    def last_full_layer(self, *, skips_shared: bool) -> int:
        """The last layer that must compute all tokens: later ones keep nothing of them, and no other replica waits.

        Attention that is not causal reads all tokens.

        skips_shared: False counts layers that read the keys and values of others as if they kept their own.
        """
        last = 0
        for index, layer in enumerate(self.layers):
            keeps = any(mixer.keeps.kind != "nothing" for mixer in layer.mixers) or not layer.is_causal
            is_shared = isinstance(layer.feed_forward, Experts) and layer.feed_forward.num_replicas > 1
            if keeps or is_shared or (layer.keys_of is not None and not skips_shared):
                last = index
        return last

    @property
    def blocks(self) -> dict[int, SharedBlock]:
        """Shared blocks by the layers that they are in."""
        return {index: layer.block for index, layer in enumerate(self.layers) if layer.block is not None}

    @property
    def layer_input(self) -> LayerInput | None:
        """What the layers get of each token; None if they get nothing. All get vectors of the same width."""
        return self.layers[0].input if self.layers else None

    @property
    def head_dims(self) -> tuple[int, ...]:
        """Elements of the vectors that attention kernels multiply: of a head, or of a latent and its rotated part."""
        dims: dict[int, None] = {}
        for layer in self.layers:
            match layer.mixer:
                case Attention(head_dim=head_dim):
                    dims[head_dim] = None
                case LatentAttention(is_expanded=True) as mixer:
                    dims[mixer.expanded.head_dim] = None
                case LatentAttention(rank=rank, rope_dim=rope_dim):
                    dims |= {rank: None, rope_dim: None}
                case CompressedAttention(head_dim=head_dim):
                    dims[head_dim] = None
        return tuple(dims)

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that can be rotated; 0 without attention."""
        kinds = Attention | LatentAttention | CompressedAttention
        mixers = [layer.mixer for layer in self.layers if isinstance(layer.mixer, kinds)]
        dims = (mixer.rope_dim if isinstance(mixer, LatentAttention) else mixer.head_dim for mixer in mixers)
        return max(dims, default=0)

    @property
    def has_rotation(self) -> bool:
        """Whether some layer has a rotary embedding."""
        mixers = [layer.mixer for layer in self.layers]
        return any(
            isinstance(mixer, LatentAttention | CompressedAttention)
            or (isinstance(mixer, Attention) and mixer.rope is not None)
            for mixer in mixers
        )

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Sliding window of each layer's causal attention, in tokens."""
        kinds = Attention | LatentAttention
        return tuple(
            layer.mixer.window if isinstance(layer.mixer, kinds) and layer.is_causal else None for layer in self.layers
        )

    @property
    def states(self) -> tuple[StateShape | None, ...]:
        """What each layer keeps of a sequence; None for a layer without a recurrent state that the engine computes."""
        return tuple(layer.state for layer in self.layers)

    @property
    def has_states(self) -> bool:
        return any(state is not None for state in self.states)

    @property
    def has_lists(self) -> bool:
        """Whether a table lists the experts of each token id."""
        return any(
            isinstance(layer.feed_forward, Experts) and layer.feed_forward.listed_tokens for layer in self.layers
        )

    @property
    def has_experts(self) -> bool:
        return any(isinstance(layer.feed_forward, Experts) for layer in self.layers)

    @property
    def num_sharing_experts(self) -> int:
        """Replicas over which the experts are spread."""
        blocks = (layer.feed_forward for layer in self.layers)
        return max((block.num_replicas for block in blocks if isinstance(block, Experts)), default=1)

    @property
    def held_share(self) -> float:
        """Share of all experts that one device has."""
        blocks = [layer.feed_forward for layer in self.layers if isinstance(layer.feed_forward, Experts)]
        held = sum(block.count if block.held is None else block.held for block in blocks)
        return held / sum(block.count for block in blocks) if blocks else 1.0

    @property
    def is_latent(self) -> bool:
        """Whether the cache holds latents."""
        return any(isinstance(layer.mixer, LatentAttention) and not layer.mixer.is_expanded for layer in self.layers)

    @property
    def is_sparse(self) -> bool:
        """Whether an index chooses the tokens of attention."""
        return any(
            (isinstance(layer.mixer, LatentAttention) and layer.mixer.index_heads > 0)
            or (isinstance(layer.mixer, Attention) and layer.mixer.index is not None)
            for layer in self.layers
        )

    @property
    def is_compressed(self) -> bool:
        """Whether attention is over a window, and over a vector for several tokens."""
        return any(isinstance(layer.mixer, CompressedAttention) for layer in self.layers)

    @property
    def chooses_vectors(self) -> bool:
        """Whether an index chooses some of the vectors for several tokens."""
        return any(isinstance(layer.mixer, CompressedAttention) and layer.mixer.index_heads for layer in self.layers)

    @property
    def tokens_of_vector(self) -> int:
        """Tokens that a block has a multiple of: whole groups of those that have one vector in the cache."""
        mixers = [layer.mixer for layer in self.layers if isinstance(layer.mixer, CompressedAttention)]
        return math.lcm(*(mixer.rate or 1 for mixer in mixers))

    def with_expanded_attention(self) -> ModelSpec:
        """Return the same model with the keys and values of all heads in the cache, also of latent attention."""

        def expanded(layer: LayerSpec) -> LayerSpec:
            if not isinstance(layer.mixer, LatentAttention):
                return layer
            return layer.model_copy(update={"mixer": layer.mixer.model_copy(update={"is_expanded": True})})

        return self.model_copy(update={"layers": tuple(map(expanded, self.layers))})

    def with_weights_of(self, names: WeightNames, *, has_pairs: bool, has_whole_norms: bool = False) -> ModelSpec:
        """Return the same model with the weights of another format.

        has_pairs: rows of queries and keys are in another order, in which neighbours are rotated together.
        has_whole_norms: the weights of norms are stored as they are, not as their differences from 1.
        """

        def interleaved(layer: LayerSpec) -> LayerSpec:
            mixer = layer.mixer
            if not has_pairs or not isinstance(mixer, Attention) or mixer.rope is None:
                return layer
            rope = mixer.rope.model_copy(update={"is_interleaved": True})
            return layer.model_copy(update={"mixer": mixer.model_copy(update={"rope": rope})})

        changes: dict[str, Any] = {"layers": tuple(map(interleaved, self.layers)), "weight_names": names}
        if has_whole_norms:
            changes["norm"] = self.norm.model_copy(update={"is_offset": False})
        return self.model_copy(update=changes)

    def without_windows(self) -> ModelSpec:
        """Return the same model with all attention over all tokens."""

        def widened(layer: LayerSpec) -> LayerSpec:
            mixer = layer.mixer
            if not isinstance(mixer, Attention | LatentAttention) or mixer.window is None:
                return layer
            changes = {"window": None} | ({"is_chunked": False} if isinstance(mixer, Attention) else {})
            return layer.model_copy(update={"mixer": mixer.model_copy(update=changes)})

        return self.model_copy(update={"layers": tuple(map(widened, self.layers))})
