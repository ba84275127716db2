"""ModelSpec: a language model as a sequence of layers. Each layer has a mixer, a feed-forward block and norms.

A mixer lets tokens see each other: attention of several kinds, or a recurrent state. Sizes are numbers of elements;
`keeps` is what a cache must hold of the past, `activations` the elements per token while a step is computed.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from .record import Record
from .weight_methods import CheckpointMethod


class RopeSpec(Record):
    """Rotary embedding: base, kind, and the kind's parameters under the names of config.json."""

    theta: float
    kind: str = "default"  # one of ROPE_KINDS in rope.py; others are not computed
    factor: float | None = None
    original_max_position_embeddings: int | None = None  # tokens
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = None
    short_factor: tuple[float, ...] | None = None  # longrope: per pair, up to the trained context
    long_factor: tuple[float, ...] | None = None  # longrope: per pair, for longer contexts
    llama_4_scaling_beta: float | None = None  # queries grow with their position beyond the trained context
    partial_rotary_factor: float = 1.0  # share of a head that is turned
    is_interleaved: bool = False  # pairs are neighbours; else the two halves of what is turned


class Keeps(Record):
    """What one layer keeps of a sequence, in elements; bytes follow from the dtype.

    full, window, latent: `width` elements per token, for a window at most `window` tokens.
    nothing: it reads what another layer keeps.
    state: `width` elements per sequence however long it is, `sums_width` of them in the format of sums.
    cross: `width` elements per token of another input, which has `window` tokens.
    tensors: of full, window and latent, which hold the elements of a token: (heads, elements of a head) of each.
    num_heads: key-value heads, by which it can be divided over devices; 0: every device keeps all of it.
    """

    kind: Literal["full", "window", "latent", "state", "cross", "nothing"]
    width: int
    window: int = 0
    sums_width: int = 0
    num_heads: int = 0
    tensors: tuple[tuple[int, int], ...] = ()


# ALiBi: a slope per head, times the distance to a key, is added to the products of queries and keys, before or after
# these are scaled. arXiv:2108.12409
Alibi = Literal["none", "before_scale", "after_scale"]
# RMS norm over each head of q and k, also after the rotation, or there without weights; over all heads together; layer
# norm of each head with weights of its own
HeadNorm = Literal["none", "head", "head_after_rope", "bare_after_rope", "whole", "layer"]


class QueryGrowth(Record):
    """The n-th query is multiplied by 1 + weight * log(1 + floor(n / interval)). Source: arXiv:2501.19399."""

    interval: float
    weight: float


class Attention(Record):
    """Every query attends to the keys before it, or to those of a window."""

    kind: Literal["attention"] = "attention"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None  # tokens a query sees, itself included; None: all
    is_chunked: bool = False  # a query sees its own chunk of `window` tokens; False: the last `window` tokens
    has_bias: bool = False  # q, k, v
    has_out_bias: bool = False
    head_norm: HeadNorm = "none"
    has_gate: bool = False  # on the output
    has_value_norm: bool = False  # values get a root mean square of one
    has_own_values: bool = True  # False: the projection of the keys is that of the values too
    scale: float | None = None  # of the products; None: head_dim**-0.5
    softcap: float | None = None  # limit c of the products s: c * tanh(s / c)
    has_sinks: bool = False  # a learned logit per head in the softmax, without a value
    rope: RopeSpec | None = None  # None: queries and keys have no position
    query_growth: QueryGrowth | None = None
    alibi: Alibi = "none"
    is_grouped: bool = False  # queries, keys and values are stored in one tensor, by key-value head
    keys_of: int | None = None  # the layer before it whose keys and values it reads; None: it has its own

    @property
    def num_projected(self) -> tuple[int, int]:
        """Heads of keys and heads of values that it computes."""
        if self.keys_of is not None:
            return 0, 0
        return self.num_kv_heads, self.num_kv_heads * self.has_own_values

    @property
    def keeps(self) -> Keeps:
        if self.keys_of is not None:
            return Keeps(kind="nothing", width=0)
        heads = self.num_kv_heads, self.head_dim
        kept = Keeps(kind="full", width=2 * math.prod(heads), num_heads=self.num_kv_heads, tensors=(heads, heads))
        return kept if self.window is None else kept.model_copy(update={"kind": "window", "window": self.window})

    @property
    def activations(self) -> int:
        return 2 * (self.num_heads + self.num_kv_heads) * self.head_dim


class CrossAttention(Record):
    """Attention to another input, such as an image or what an encoder read."""

    kind: Literal["cross_attention"] = "cross_attention"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_tokens: int  # of the other input

    @property
    def keeps(self) -> Keeps:
        width = 2 * self.num_kv_heads * self.head_dim
        return Keeps(kind="cross", width=width, window=self.num_tokens, num_heads=self.num_kv_heads)

    @property
    def activations(self) -> int:
        return 2 * (self.num_heads + self.num_kv_heads) * self.head_dim


class LatentAttention(Record):
    """Keys and values of all heads from one compressed vector per token: arXiv:2405.04434, section 2.1."""

    kind: Literal["latent_attention"] = "latent_attention"
    num_heads: int
    query_rank: int  # 0: queries are not compressed
    rank: int  # of keys and values
    plain_dim: int  # of a head's query and key without position
    rope_dim: int  # of a head's query and of the key that all heads share
    value_dim: int
    has_bias: bool = False  # of the projections from and to the model's width
    scale: float | None = None  # of the products; None: (plain_dim + rope_dim)**-0.5
    rope: RopeSpec | None = None  # None: not known
    norm_eps: float = 1e-6  # of the compressed vectors
    index_heads: int = 0  # of the index that chooses the tokens (DeepSeek-V3.2); 0: there is none
    index_dim: int = 0
    index_topk: int = 0  # tokens that a query attends to at most
    has_interleaved_index: bool = False  # the rotated pairs of its queries and keys are neighbours
    shares_index: bool = False  # attends to the tokens that the layer before has chosen
    is_expanded: bool = False  # keys and values of all heads are computed from the vector, and kept instead of it

    @property
    def expanded(self) -> Attention:
        """Attention over the keys and values of all heads; the narrower of the two are padded."""
        width = max(self.plain_dim + self.rope_dim, self.value_dim)
        return Attention(num_heads=self.num_heads, num_kv_heads=self.num_heads, head_dim=width)

    @property
    def keeps(self) -> Keeps:
        if self.is_expanded:
            return self.expanded.keeps
        width = self.rank + self.rope_dim + self.index_dim
        return Keeps(kind="latent", width=width, tensors=((1, width),))

    @property
    def activations(self) -> int:
        query = self.plain_dim + self.rope_dim
        if self.is_expanded:
            return 2 * self.num_heads * (query + self.value_dim)
        return self.num_heads * (query + 2 * self.rank + self.rope_dim + self.value_dim)


class StateShape(Record):
    """The shapes of what a layer keeps of a sequence, however long it is.

    inputs: the last inputs of a convolution, in the dtype of the model. sums: of many tokens; () if there are none.
    """

    inputs: tuple[int, ...]
    sums: tuple[int, ...] = ()

    @property
    def keeps(self) -> Keeps:
        sums = math.prod(self.sums) if self.sums else 0
        return Keeps(kind="state", width=math.prod(self.inputs) + sums, sums_width=sums)


class GatedDelta(Record):
    """A gated delta network: a state per value head, arXiv:2412.06464; a short convolution before it."""

    kind: Literal["gated_delta"] = "gated_delta"
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    is_grouped: bool = False  # its projections are stored by key head, in two tensors

    @property
    def conv_channels(self) -> int:
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def state(self) -> StateShape:
        return StateShape(
            inputs=(self.conv_width - 1, self.conv_channels),
            sums=(self.num_value_heads, self.key_dim, self.value_dim),
        )

    @property
    def keeps(self) -> Keeps:
        return self.state.keeps

    @property
    def activations(self) -> int:
        return 2 * (self.conv_channels + self.num_value_heads * self.value_dim)


class Mamba(Record):
    """A selective state space without heads: arXiv:2312.00752."""

    kind: Literal["mamba"] = "mamba"
    width: int  # channels
    state_size: int  # per channel
    conv_width: int
    step_rank: int = 0  # of the projection of the time step

    @property
    def keeps(self) -> Keeps:
        state = self.width * self.state_size
        return Keeps(kind="state", width=self.width * (self.conv_width - 1) + state, sums_width=state)

    @property
    def activations(self) -> int:
        return 4 * self.width


# RMS norm of the outputs of each group of heads: none, before they are multiplied by the gate, or after it
GateNorm = Literal["none", "before_gate", "after_gate"]


class Mamba2(Record):
    """A selective state space: a state per head, arXiv:2405.21060; a short convolution before it, a gate after it."""

    kind: Literal["mamba2"] = "mamba2"
    num_heads: int
    head_dim: int
    num_groups: int  # of heads that share B and C, and whose outputs are normed together
    state_size: int  # per channel
    conv_width: int
    has_bias: bool = False  # of the input's projection
    has_out_bias: bool = False
    has_conv_bias: bool = True
    norm: GateNorm = "after_gate"
    min_step: float = 0.0  # time steps are limited to these
    max_step: float | None = None

    @property
    def width(self) -> int:
        """Channels of inputs and outputs."""
        return self.num_heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        return self.width + 2 * self.num_groups * self.state_size

    @property
    def state(self) -> StateShape:
        return StateShape(
            inputs=(self.conv_width - 1, self.conv_channels), sums=(self.num_heads, self.state_size, self.head_dim)
        )

    @property
    def keeps(self) -> Keeps:
        return self.state.keeps

    @property
    def activations(self) -> int:
        return 2 * (self.conv_channels + self.width) + 2 * self.width  # outputs are float32 until they are normed


class ShortConvolution(Record):
    """A gated convolution over the last tokens (LFM2)."""

    kind: Literal["short_convolution"] = "short_convolution"
    width: int  # channels
    conv_width: int  # tokens, the newest included
    has_bias: bool = False

    @property
    def state(self) -> StateShape:
        return StateShape(inputs=(self.conv_width - 1, self.width))

    @property
    def keeps(self) -> Keeps:
        return self.state.keeps

    @property
    def activations(self) -> int:
        return 4 * self.width


Recurrent = GatedDelta | Mamba2 | ShortConvolution  # that the engine computes


class LinearAttention(Record):
    """A state of one outer product per head (MiniMax-01, Kimi Linear)."""

    kind: Literal["linear_attention"] = "linear_attention"
    num_heads: int
    head_dim: int

    @property
    def keeps(self) -> Keeps:
        state = self.num_heads * self.head_dim * self.head_dim
        return Keeps(kind="state", width=state, sums_width=state)

    @property
    def activations(self) -> int:
        return 5 * self.num_heads * self.head_dim


Mixer = Annotated[
    Attention | CrossAttention | LatentAttention | GatedDelta | Mamba | Mamba2 | ShortConvolution | LinearAttention,
    Field(discriminator="kind"),
]


class MLP(Record):
    """down(act(gate) * up), or down(act(up)) if it is not gated."""

    kind: Literal["mlp"] = "mlp"
    width: int
    activation: str = "silu"  # as config.json names it
    is_gated: bool = True
    has_bias: bool = False

    @property
    def activations(self) -> int:
        return (2 + self.is_gated) * self.width


class Routing(Record):
    """How a token's experts and their weights follow from the router's logits.

    softmax, sigmoid: scores of all experts, of which the best are taken. softmax_of_chosen: the best logits are taken,
    and the weights are their softmax. has_correction: a bias is added to the scores for the choice only.
    """

    scoring: Literal["softmax", "sigmoid", "softmax_of_chosen"] = "softmax"
    is_renormalised: bool = False  # the weights of the chosen add up to 1
    has_correction: bool = False
    num_groups: int = 1  # experts are chosen in the best `groups_per_token` groups
    groups_per_token: int = 1
    scale: float = 1.0  # of the weights
    is_float32: bool = False  # the router multiplies in float32, whatever the model does


# How several devices share the experts of a layer: each has a part of every expert, or whole experts, consecutive ones
# or every n-th.
Placement = Literal["divided", "linear", "round_robin"]


class Experts(Record):
    """`per_token` of `count` expert MLPs run for each token, and one of `shared_width` for all."""

    kind: Literal["experts"] = "experts"
    count: int
    per_token: int
    width: int
    routing: Routing = Routing()
    scales_input: bool = False  # the weight of an expert multiplies its input, not its output
    shared_width: int = 0
    has_shared_gate: bool = False  # the sigmoid of one output of a linear layer multiplies that of the shared one
    beside: MLP | None = None  # runs for each token too: the experts and it have norms of their own (Gemma 4)
    has_router_norm: bool = False  # of the router's own input, which is not normed for the experts
    has_scales: bool = False  # a number for each expert multiplies its weight
    has_router_bias: bool = False
    has_bias: bool = False
    activation: str = "silu"
    is_gated: bool = True
    placement: Placement = "divided"
    redundant: int | None = None  # further copies of experts, where these are moved by their load; None: they stay
    held: int | None = None  # experts that one device has, where they are placed; None: all
    num_replicas: int = 1  # of the model that share the experts, where they are placed

    @property
    def activations(self) -> int:
        beside = 0 if self.beside is None else self.beside.activations
        return (2 + self.is_gated) * (self.per_token * self.width + self.shared_width) + beside


FeedForward = Annotated[MLP | Experts, Field(discriminator="kind")]


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
# added at once; an input of each, which are added at once
NormPlaces = Literal["inputs", "outputs", "both", "common", "parallel"]


class LayerInput(Record):
    """A vector of each token for this layer alone, which multiplies a gate of the layer's output (Gemma 4 E2B).

    The vectors of all layers come from a table, and from a projection of the token's embedding.
    """

    width: int
    vocab_size: int  # rows of the table
    activation: str  # of the gate


class LayerSpec(Record):
    """beside: a mixer with a state, which has the input of the other, attention; their outputs are added.
    input: its product with a gate is added after the feed-forward block.
    has_scalar: a number in the checkpoint multiplies the output of the layer.
    """

    mixer: Mixer | None = None
    beside: Mixer | None = None
    feed_forward: FeedForward | None = None
    norms: NormPlaces = "inputs"
    input: LayerInput | None = None
    has_scalar: bool = False

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        return tuple(mixer for mixer in (self.mixer, self.beside) if mixer is not None)

    @property
    def state(self) -> StateShape | None:
        """What it keeps of a sequence; None without a recurrent state that the engine computes."""
        return next((each.state for each in self.mixers if isinstance(each, Recurrent)), None)

    @property
    def has_keys(self) -> bool:
        """Whether it keeps something of each token."""
        return any(each.keeps.kind not in ("state", "nothing") for each in self.mixers)

    @property
    def keys_of(self) -> int | None:
        """The layer whose keys and values it reads; None if it reads its own, or none."""
        return self.mixer.keys_of if isinstance(self.mixer, Attention) else None


class WeightScale(Record):
    """A tensor whose elements are multiplied by constants when it is read: the multipliers of a checkpoint.

    name: as tensors.py has it in each layer. parts: numbers of rows and their factors, for all rows in order.
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
    has_position_table: bool = False  # learned positions, added to the embedding
    position_offset: int = 0  # rows of the table before that of the first position
    has_embedding_norm: bool = False
    has_output_bias: bool = False
    norm: Norm = Norm()
    layers: tuple[LayerSpec, ...]
    embedding_scale: float = 1.0
    rounds_embedding_scale: bool = False  # to the dtype of the model
    weight_scales: tuple[WeightScale, ...] = ()
    residual_scale: float = 1.0  # of what a mixer or feed-forward adds
    logits_scale: float = 1.0
    logits_softcap: float | None = None
    dtype: str = "bfloat16"  # that config.json names
    quantization: CheckpointMethod | None = None  # of a quantised checkpoint
    is_part: bool = False  # of a model with encoders
    weight_names: WeightNames = "hf"
    assumptions: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()  # what config.json says and the engine does not compute

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def attention(self) -> Attention | None:
        """Of the first layer that has one. Latent attention has one if it is expanded."""
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
        """By layer: the layer before it whose keys and values it reads."""
        return tuple(layer.keys_of for layer in self.layers)

    def last_full_layer(self, *, skips_shared: bool) -> int:
        """The last layer that must compute all tokens: later ones keep nothing of them, and no other replica waits.

        skips_shared: False counts layers that read the keys and values of others as if they kept their own.
        """
        last = 0
        for index, layer in enumerate(self.layers):
            keeps = any(mixer.keeps.kind != "nothing" for mixer in layer.mixers)
            is_shared = isinstance(layer.feed_forward, Experts) and layer.feed_forward.num_replicas > 1
            if keeps or is_shared or (layer.keys_of is not None and not skips_shared):
                last = index
        return last

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
        return tuple(dims)

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that can be rotated; 0 without attention."""
        mixers = [layer.mixer for layer in self.layers if isinstance(layer.mixer, Attention | LatentAttention)]
        dims = (mixer.head_dim if isinstance(mixer, Attention) else mixer.rope_dim for mixer in mixers)
        return max(dims, default=0)

    @property
    def has_rotation(self) -> bool:
        """Whether some layer has a rotary embedding."""
        mixers = [layer.mixer for layer in self.layers]
        return any(
            isinstance(mixer, LatentAttention) or (isinstance(mixer, Attention) and mixer.rope is not None)
            for mixer in mixers
        )

    @property
    def windows(self) -> tuple[int | None, ...]:
        """By layer: the sliding window of its attention, in tokens."""
        return tuple(layer.mixer.window if isinstance(layer.mixer, Attention) else None for layer in self.layers)

    @property
    def states(self) -> tuple[StateShape | None, ...]:
        """By layer: what it keeps of a sequence; None of a layer without a recurrent state that the engine computes."""
        return tuple(layer.state for layer in self.layers)

    @property
    def has_states(self) -> bool:
        return any(state is not None for state in self.states)

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
        """Of all experts, those that one device has."""
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
        return any(isinstance(layer.mixer, LatentAttention) and layer.mixer.index_heads for layer in self.layers)

    def with_expanded_attention(self) -> ModelSpec:
        """With the keys and values of all heads in the cache, also of latent attention."""

        def expanded(layer: LayerSpec) -> LayerSpec:
            if not isinstance(layer.mixer, LatentAttention):
                return layer
            return layer.model_copy(update={"mixer": layer.mixer.model_copy(update={"is_expanded": True})})

        return self.model_copy(update={"layers": tuple(map(expanded, self.layers))})

    def with_weights_of(self, names: WeightNames, *, has_pairs: bool, has_whole_norms: bool = False) -> ModelSpec:
        """Of the same model in another format.

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
        """With all attention over all tokens."""

        def widened(layer: LayerSpec) -> LayerSpec:
            mixer = layer.mixer
            if not isinstance(mixer, Attention) or mixer.window is None:
                return layer
            return layer.model_copy(update={"mixer": mixer.model_copy(update={"window": None, "is_chunked": False})})

        return self.model_copy(update={"layers": tuple(map(widened, self.layers))})
