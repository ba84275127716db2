"""Mixers: descriptions of the parts of a layer that let tokens see each other: attention, or a recurrent state.

Sizes are numbers of elements; `keeps` is what a cache must hold of the past, `activations` the elements per token while
a step is computed.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from .block_index import BlockIndex
from .record import Record


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
    short_mscale: float | None = None  # in place of attention_factor, up to the trained context
    long_mscale: float | None = None  # in place of attention_factor, for longer contexts
    llama_4_scaling_beta: float | None = None  # queries grow with their position beyond the trained context
    partial_rotary_factor: float = 1.0  # share of a head that is rotated
    is_interleaved: bool = False  # pairs are neighbours; else the two halves of what is rotated
    pair_kinds: tuple[int, ...] = ()  # the kind of position by which each pair is rotated; empty: there is one kind


class Keeps(Record):
    """What one layer keeps of a sequence, in elements; bytes follow from the dtype.

    full, window, latent: `width` elements per token, for a window at most `window` tokens. A latent has a window if
        that is not 0.
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
# norm of each head with its own weights, in one tensor or in one for each head
HeadNorm = Literal["none", "head", "head_after_rope", "bare_after_rope", "whole", "layer", "layer_each"]


# What the outputs are multiplied by: a sigmoid for each element, or for each head. with_queries: for each element, from
# the projection of latent attention's queries, whose input is their compressed vectors, normed and then as they were
Gate = Literal["none", "element", "head", "with_queries"]


class QueryGrowth(Record):
    """The n-th query is multiplied by 1 + weight * log(1 + floor(n / interval)). Source: arXiv:2501.19399."""

    interval: float
    weight: float


class Attention(Record):
    """Every query attends to the keys before it, or to a window of them.

    Attention that is not causal sees those after it too. It needs all tokens of a text in one step, and keeps nothing.
    """

    kind: Literal["attention"] = "attention"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None  # tokens a query sees, itself included; None: all. Not causal: before it, and after it
    is_causal: bool = True
    is_chunked: bool = False  # a query sees its own chunk of `window` tokens; False: the last `window` tokens
    has_bias: bool = False  # q, k, v
    has_out_bias: bool = False
    head_norm: HeadNorm = "none"
    gate: Gate = "none"
    value_dim: int | None = None  # of a head's values, which are kept with zeros up to head_dim; None: head_dim
    has_value_norm: bool = False  # values get a root mean square of one
    has_own_values: bool = True  # False: the projection of the keys is that of the values too
    scale: float | None = None  # of the products; None: head_dim**-0.5
    softcap: float | None = None  # limit c of the products s: c * tanh(s / c)
    has_sinks: bool = False  # a learned logit per head in the softmax, without a value
    rope: RopeSpec | None = None  # None: queries and keys have no position
    query_growth: QueryGrowth | None = None
    alibi: Alibi = "none"
    bias_buckets: int | None = None  # of distances to keys, with a learned bias of each head's scores for each; T5's
    is_grouped: bool = False  # queries, keys and values are stored in one tensor, by key-value head
    qkv_parts: int = 0  # of one tensor that is stored, each queries, values and keys of some heads; 0: there is none
    keys_of: int | None = None  # the layer before it whose keys and values it reads; None: it has its own
    index: BlockIndex | None = None  # chooses the tokens to which a query attends; None: it attends to all
    # Differential attention, arXiv:2410.05258: lambda without its learned part. Each key has those of two heads side by
    # side, each query that of one of them and zeros, and each value those of both. None: other attention.
    lambda_start: float | None = None

    @property
    def query_dim(self) -> int:
        """Elements of a head's query that are computed."""
        return self.head_dim if self.lambda_start is None else self.head_dim // 2

    @property
    def output_dim(self) -> int:
        """Elements of what a head returns to the model."""
        if self.lambda_start is not None:  # two heads return one value
            return self.head_dim // 2
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def num_projected(self) -> tuple[int, int]:
        """Heads of keys and heads of values that it computes."""
        if self.keys_of is not None:
            return 0, 0
        return self.num_kv_heads, self.num_kv_heads if self.has_own_values else 0

    @property
    def keeps(self) -> Keeps:
        if self.keys_of is not None or not self.is_causal:
            return Keeps(kind="nothing", width=0)
        # The cache has tensors of one size: that of the index keys has the same key in each head, so that each device
        # which has some of the heads has it, and more room than they need.
        heads = ((self.num_kv_heads, self.head_dim),) * (2 if self.index is None else 3)
        kept = Keeps(kind="full", width=sum(map(math.prod, heads)), num_heads=self.num_kv_heads, tensors=heads)
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
    gate: Gate = "none"  # on the outputs of heads
    has_sinks: bool = False  # a learned logit per head in the softmax, without a value
    scale: float | None = None  # of the products; None: (plain_dim + rope_dim)**-0.5
    rope: RopeSpec | None = None  # None: not known
    norm_eps: float = 1e-6  # of the compressed vectors
    has_key_norm: bool = False  # of the key that all heads share, before it is rotated
    query_scale: float = 1.0  # of the normed compressed vectors of queries
    latent_scale: float = 1.0  # of the normed compressed vectors of keys and values
    window: int | None = None
    kept_width: int = 0  # elements of a token in the cache at least; what a layer does not need is not read
    index_heads: int = 0  # of the index that chooses the tokens (DeepSeek-V3.2); 0: there is none
    index_dim: int = 0
    index_topk: int = 0  # tokens that a query attends to at most
    has_interleaved_index: bool = False  # the rotated pairs of its queries and keys are neighbours
    turns_index_end: bool = False  # the last elements of its queries and keys are rotated, not the first
    index_eps: float = 1e-6  # of the norm of its keys
    shares_index: bool = False  # attends to the tokens that the layer before has chosen
    is_expanded: bool = False  # keys and values of all heads are computed from the vector, and kept instead of it

    @property
    def num_gates(self) -> int:
        each = {"none": 0, "head": 1}.get(self.gate, self.value_dim)
        return each * self.num_heads

    @property
    def expanded(self) -> Attention:
        """Attention over the keys and values of all heads; the narrower of the two are padded."""
        width = max(self.plain_dim + self.rope_dim, self.value_dim)
        heads = self.num_heads
        return Attention(num_heads=heads, num_kv_heads=heads, head_dim=width, window=self.window)

    @property
    def keeps(self) -> Keeps:
        if self.is_expanded:
            return self.expanded.keeps
        width = max(self.kept_width, self.rank + self.rope_dim + self.index_dim)
        return Keeps(kind="latent", width=width, window=self.window or 0, tensors=((1, width),))

    @property
    def activations(self) -> int:
        query = self.plain_dim + self.rope_dim
        if self.is_expanded:
            return 2 * self.num_heads * (query + self.value_dim)
        return self.num_heads * (query + 2 * self.rank + self.rope_dim + self.value_dim)


class StateShape(Record):
    """The shapes of what a layer keeps of a sequence, however long it is.

    inputs: the last inputs of a convolution, in the dtype of the model. sums: of many tokens. () if there are none.
    beside: the last inputs of another convolution, which is not part of the mixer; () if there is none.
    """

    inputs: tuple[int, ...]
    sums: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()

    @property
    def keeps(self) -> Keeps:
        inputs, sums, beside = (math.prod(shape) if shape else 0 for shape in (self.inputs, self.sums, self.beside))
        return Keeps(kind="state", width=inputs + sums + beside, sums_width=sums)


# How a checkpoint stores the projections of a gated delta network: queries, keys and values in one tensor; all by key
# head, in two tensors; or one by one, with a convolution for each of queries, keys and values
DeltaForm = Literal["by_part", "by_key_head", "one_by_one"]
GateActivation = Literal["silu", "sigmoid"]


class GatedDelta(Record):
    """A gated delta network: a state per value head, arXiv:2412.06464; a short convolution before it."""

    kind: Literal["gated_delta"] = "gated_delta"
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    form: DeltaForm = "by_part"
    beta_scale: float = 1.0  # the largest rate of change of the state
    norm_eps: float | None = None  # None: as of the model's norms
    gate: GateActivation = "silu"  # of its outputs

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


class KimiDelta(Record):
    """Kimi Delta Attention: a gated delta rule with a decay for each row of a head's state, arXiv:2510.26692."""

    kind: Literal["kimi_delta"] = "kimi_delta"
    num_heads: int
    head_dim: int  # of keys and values
    rank: int  # of the projections of the decays and gates of all heads; 0: they are not compressed
    conv_width: int
    least_log: float | None = None  # what the logarithm of a decay is not below; None: it has no bound

    @property
    def conv_channels(self) -> int:
        return 3 * self.num_heads * self.head_dim

    @property
    def state(self) -> StateShape:
        return StateShape(
            inputs=(self.conv_width - 1, self.conv_channels), sums=(self.num_heads, self.head_dim, self.head_dim)
        )

    @property
    def keeps(self) -> Keeps:
        return self.state.keeps

    @property
    def activations(self) -> int:
        return 9 * self.num_heads * self.head_dim


# RMS norm of the compressed time steps, of B and of C, each over its own elements: none, without or with weights
PartNorm = Literal["none", "bare", "weighted"]


class Mamba(Record):
    """A selective state space with a state per channel, arXiv:2312.00752; a convolution before it, a gate after it."""

    kind: Literal["mamba"] = "mamba"
    width: int  # channels
    state_size: int  # per channel
    conv_width: int
    step_rank: int  # elements of the vector from which the time steps of all channels are computed
    has_bias: bool = False  # of the projections from and to the model's width
    has_conv_bias: bool = True
    norm: PartNorm = "none"
    norm_eps: float = 1e-6
    num_heads: int | None = None  # of channels, which compute their own time steps, B and C; None: all channels do

    @property
    def state(self) -> StateShape:
        return StateShape(inputs=(self.conv_width - 1, self.width), sums=(self.state_size, self.width))

    @property
    def keeps(self) -> Keeps:
        return self.state.keeps

    @property
    def activations(self) -> int:
        return 5 * self.width + 2 * (self.num_heads or 1) * (self.step_rank + 2 * self.state_size)


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
    norm_eps: float | None = None  # None: as of the model's norms
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


class RgLru(Record):
    """A real-gated linear recurrent unit, whose state is an element per channel: arXiv:2402.19427. A convolution before
    it, a gate after it; its own gates come from matrices of each head."""

    kind: Literal["rg_lru"] = "rg_lru"
    num_heads: int
    head_dim: int
    conv_width: int
    activation: str  # of the gate, as config.json names it

    @property
    def width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def state(self) -> StateShape:
        return StateShape(inputs=(self.conv_width - 1, self.width), sums=(self.width,))

    @property
    def keeps(self) -> Keeps:
        return self.state.keeps

    @property
    def activations(self) -> int:
        return 7 * self.width


class LightningAttention(Record):
    """Linear attention whose state, of an outer product per head, decays at a fixed rate: arXiv:2501.08313."""

    kind: Literal["lightning_attention"] = "lightning_attention"
    num_heads: int
    head_dim: int
    slope_scale: float = 1.0  # of the rates of decay, by layer
    norm_eps: float = 1e-6

    @property
    def width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def state(self) -> StateShape:
        return StateShape(inputs=(), sums=(self.num_heads, self.head_dim, self.head_dim))

    @property
    def keeps(self) -> Keeps:
        return self.state.keeps

    @property
    def activations(self) -> int:
        return 9 * self.width  # outputs are float32 until they are normed


class CompressedAttention(Record):
    """Attention to a window of tokens, and to one vector for each `rate` tokens before: DeepSeek-V4.

    A vector is key and value of all heads. Without compressed vectors it attends to the window alone.
    """

    kind: Literal["compressed_attention"] = "compressed_attention"
    num_heads: int
    head_dim: int
    query_rank: int
    window: int  # tokens that a query sees, itself included
    out_groups: int  # of heads, whose outputs are compressed together
    out_rank: int  # what the outputs of a group are compressed to
    rope: RopeSpec  # of the last elements of a head
    norm_eps: float = 1e-6
    rate: int = 0  # tokens of a compressed vector; 0: there are none
    overlaps: bool = False  # the tokens of the group before are in a vector too
    index_heads: int = 0  # of the index that chooses the vectors; 0: a query attends to all
    index_dim: int = 0
    index_topk: int = 0  # vectors that a query attends to at most

    @property
    def group_width(self) -> int:
        """Elements of the outputs of a group of heads."""
        return self.num_heads // self.out_groups * self.head_dim

    @property
    def input_widths(self) -> tuple[int, ...]:
        """Elements that a token adds to each kind of vector: of attention, and of the index."""
        dims = (self.head_dim, self.index_dim) if self.index_heads else (self.head_dim,)
        return tuple(dim * (1 + self.overlaps) for dim in dims) if self.rate else ()

    @property
    def state(self) -> StateShape:
        """The keys of the window, and the inputs of vectors that are not complete, with their gates."""
        tokens = self.rate * (1 + self.overlaps)
        sums = (tokens, 2 * sum(self.input_widths)) if self.rate else ()
        return StateShape(inputs=(self.window, self.head_dim), sums=sums)

    @property
    def keeps(self) -> Keeps:
        if not self.rate:
            return self.state.keeps
        width = (self.head_dim + self.index_dim) // self.rate
        return Keeps(kind="latent", width=width, tensors=((1, width),))

    @property
    def activations(self) -> int:
        queries = self.num_heads * self.head_dim + self.index_heads * self.index_dim
        chosen = 4 * self.index_topk  # numbers of 8 bytes, as elements of 2
        return 3 * queries + chosen + 2 * sum(self.input_widths) + self.out_groups * self.out_rank


Recurrent = (  # that the engine computes
    GatedDelta | KimiDelta | LightningAttention | Mamba | Mamba2 | RgLru | ShortConvolution | CompressedAttention
)


Mixer = Annotated[
    Attention
    | CrossAttention
    | LatentAttention
    | CompressedAttention
    | GatedDelta
    | KimiDelta
    | Mamba
    | Mamba2
    | RgLru
    | ShortConvolution
    | LightningAttention,
    Field(discriminator="kind"),
]
