"""ModelSpec: a language model as a sequence of layers. Each layer has a mixer, a feed-forward block and norms.

A mixer lets tokens see each other: attention of several kinds, or a recurrent state. Sizes are numbers of elements;
`keeps` is what a cache must hold of the past, `activations` the elements per token while a step is computed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .record import Record


class RopeSpec(Record):
    """Rotary embedding: base, kind, and the kind's parameters under the names of config.json."""

    theta: float
    kind: str = "default"  # default, linear, dynamic, llama3, yarn; others are not computed
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
    partial_rotary_factor: float = 1.0  # share of a head that is turned


class Keeps(Record):
    """What one layer keeps of a sequence, in elements; bytes follow from the dtype.

    full, window, latent: `width` elements per token, for a window at most `window` tokens.
    state: `width` elements per sequence however long it is, `float32_width` of them always in float32.
    cross: `width` elements per token of another input, which has `window` tokens.
    num_heads: key-value heads, by which it can be divided over devices; 0: every device keeps all of it.
    """

    kind: Literal["full", "window", "latent", "state", "cross"]
    width: int
    window: int = 0
    float32_width: int = 0
    num_heads: int = 0


class Attention(Record):
    """Every query attends to the keys before it, or to those of a window."""

    kind: Literal["attention"] = "attention"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None  # tokens a query sees, itself included; None: all
    has_bias: bool = False  # q, k, v
    has_out_bias: bool = False
    has_head_norms: bool = False  # an RMS norm over each head of q and k
    has_gate: bool = False  # on the output
    rope: RopeSpec | None = None  # None: not described

    @property
    def keeps(self) -> Keeps:
        width = 2 * self.num_kv_heads * self.head_dim
        if self.window is None:
            return Keeps(kind="full", width=width, num_heads=self.num_kv_heads)
        return Keeps(kind="window", width=width, window=self.window, num_heads=self.num_kv_heads)

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
    index_heads: int = 0  # of the index that chooses the tokens (DeepSeek-V3.2); 0: there is none
    index_dim: int = 0

    @property
    def keeps(self) -> Keeps:
        index = self.index_dim // 2 + 2 if self.index_dim else 0  # keys of the index: one byte each, and a scale
        return Keeps(kind="latent", width=self.rank + self.rope_dim + index)

    @property
    def activations(self) -> int:
        return 2 * self.num_heads * (self.plain_dim + self.rope_dim + self.value_dim)


class GatedDelta(Record):
    """A gated delta network: a state per value head, arXiv:2412.06464; a short convolution before it."""

    kind: Literal["gated_delta"] = "gated_delta"
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    @property
    def conv_channels(self) -> int:
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def keeps(self) -> Keeps:
        state = self.num_value_heads * self.value_dim * self.key_dim
        width = self.conv_channels * (self.conv_width - 1) + state
        return Keeps(kind="state", width=width, float32_width=state)

    @property
    def activations(self) -> int:
        return 2 * (self.conv_channels + self.num_value_heads * self.value_dim)


class Mamba(Record):
    """A selective state space: of version 1 (arXiv:2312.00752) without heads, of version 2 (arXiv:2405.21060) with."""

    kind: Literal["mamba"] = "mamba"
    width: int  # channels
    state_size: int  # per channel
    conv_width: int
    num_heads: int = 0  # 0: version 1
    num_groups: int = 1
    step_rank: int = 0  # of the projection of the time step; version 1

    @property
    def conv_channels(self) -> int:
        return self.width + 2 * self.num_groups * self.state_size * (self.num_heads > 0)

    @property
    def keeps(self) -> Keeps:
        state = self.width * self.state_size
        return Keeps(kind="state", width=self.conv_channels * (self.conv_width - 1) + state, float32_width=state)

    @property
    def activations(self) -> int:
        return 2 * (self.conv_channels + self.width)


class ShortConvolution(Record):
    """A gated convolution over the last tokens (LFM2)."""

    kind: Literal["short_convolution"] = "short_convolution"
    width: int  # channels
    conv_width: int  # tokens

    @property
    def keeps(self) -> Keeps:
        return Keeps(kind="state", width=self.width * self.conv_width)

    @property
    def activations(self) -> int:
        return 4 * self.width


class LinearAttention(Record):
    """A state of one outer product per head (MiniMax-01, Kimi Linear)."""

    kind: Literal["linear_attention"] = "linear_attention"
    num_heads: int
    head_dim: int

    @property
    def keeps(self) -> Keeps:
        state = self.num_heads * self.head_dim * self.head_dim
        return Keeps(kind="state", width=state, float32_width=state)

    @property
    def activations(self) -> int:
        return 5 * self.num_heads * self.head_dim


Mixer = Annotated[
    Attention | CrossAttention | LatentAttention | GatedDelta | Mamba | ShortConvolution | LinearAttention,
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


class Experts(Record):
    """`per_token` of `count` expert MLPs run for each token, and one of `shared_width` for all."""

    kind: Literal["experts"] = "experts"
    count: int
    per_token: int
    width: int
    shared_width: int = 0
    activation: str = "silu"
    is_gated: bool = True

    @property
    def activations(self) -> int:
        return (2 + self.is_gated) * (self.per_token * self.width + self.shared_width)


FeedForward = Annotated[MLP | Experts, Field(discriminator="kind")]


class LayerSpec(Record):
    mixer: Mixer | None = None
    feed_forward: FeedForward | None = None
    num_norms: int = 2  # of the width of the model


class ModelSpec(Record):
    """assumptions: what config.json does not say and no family implies."""

    architecture: str  # such as Qwen3ForCausalLM
    model_type: str  # such as qwen3
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int  # tokens
    is_tied: bool  # the output layer is the embedding
    has_position_table: bool = False  # learned positions, added to the embedding
    norm_eps: float = 1e-6
    layers: tuple[LayerSpec, ...]
    dtype: str = "bfloat16"  # that config.json names
    quantization: str | None = None  # method of a quantised checkpoint
    quantization_bits: int = 16  # of its weights
    is_part: bool = False  # of a model with encoders
    assumptions: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def attention(self) -> Attention | None:
        """Of the first layer that has one."""
        return next((layer.mixer for layer in self.layers if isinstance(layer.mixer, Attention)), None)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """By layer: the sliding window of its attention, in tokens."""
        return tuple(layer.mixer.window if isinstance(layer.mixer, Attention) else None for layer in self.layers)

    @property
    def has_experts(self) -> bool:
        return any(isinstance(layer.feed_forward, Experts) for layer in self.layers)

    @property
    def is_latent(self) -> bool:
        return any(isinstance(layer.mixer, LatentAttention) for layer in self.layers)

    def without_windows(self) -> ModelSpec:
        """With all attention over all tokens."""

        def widened(layer: LayerSpec) -> LayerSpec:
            mixer = layer.mixer
            if not isinstance(mixer, Attention) or mixer.window is None:
                return layer
            return layer.model_copy(update={"mixer": mixer.model_copy(update={"window": None})})

        return self.model_copy(update={"layers": tuple(map(widened, self.layers))})
