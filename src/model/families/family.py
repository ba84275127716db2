"""Family: an architecture as far as its name says it, without its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from ..experts import Kind as ExpertsKind
from ..hyper_connections import Kind as ConnectionsKind
from ..latent import Index as IndexKind
from ..mixers import Alibi, Gate, HeadNorm
from ..pooling import PoolMode
from ..recurrent import Kind as StatesKind
from ..spec import Norm, NormPlaces

# Which layers have the sliding window: none, whatever config.json says; all; those that `layer_types` names, and where
# it is missing, those from `max_window_layers` on, or all but every n-th, or the first and every fourth after it, or
# all but these, or all but the first and every `global_attn_every_n_layers`-th after it (with half of
# `local_attention` on each side), or those that `hybrid_layer_pattern` lists with 1, or that `attention_types` calls
# local; chunks of `attention_chunk_size` tokens, in those that turn queries and keys
Windows = (
    Literal["none", "all", "last", "each_fourth", "all_but_each_fourth", "hybrid_layer_pattern"]
    | Literal["attention_types", "chunks", "all_but_each_global"]
    | int
)
# Which layers turn queries and keys: all; those with a window, or all if none has one; those with a window; those that
# `no_rope_layers` lists with 1; all, unless `alibi` is true; all if `position_embedding_type` is `rope`; those whose
# base in `layer_rope_theta` is not 0; all if config.json has `rope_parameters`; all if `use_mem_rope` is true; none
RopeLayers = (
    Literal["all", "windows_if_any", "windows", "listed", "not_alibi", "position_embedding_type"]
    | Literal["layer_rope_theta", "rope_parameters", "use_mem_rope", "none"]
)
# What a class makes: tokens; hidden states, of which a vector is made; scores of labels of a text, or of each token;
# logits of all tokens of the vocabulary at each token, of which the largest are weights
Makes = Literal["tokens", "states", "labels", "token_labels", "vocabulary"]
FusedExperts = Literal["interleaved", "columns", "stacked", "columns_or_stacked"]
Setting = bool | str  # a string is the key of config.json that decides


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """A linear layer of a classifier, as PoolDense describes it. activation: also the key of config.json that names it.

    outputs: as many as the model is wide, as there are labels, or as there are tokens in the vocabulary.
    """

    name: str
    outputs: Literal["hidden", "labels", "vocabulary"] = "labels"
    activation: str = "none"
    has_bias: Setting = True
    norm: str | None = None
    norm_has_bias: bool = True


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: the defaults of its config class, and what its code does whatever config.json says.

    own_keys: names of keys that most families have -> names in its config.json.
    fixed: keys of config.json, also `object.key` -> the only value that is computed; also null.
    equal_keys: keys of config.json -> keys whose value they must have.
    renames: parts of the names in its checkpoints -> the names of tensors.py, in this order; ^: only at the beginning.
    is_transposed: matrices of its layers are stored as [inputs, outputs].
    fused_experts: its checkpoints may have one tensor for all experts; interleaved: [experts, inputs, gate and up in
        turn]; columns: [experts, inputs, gates and then ups]; stacked: [experts, gates and then ups, inputs];
        columns_or_stacked: as the shape of `down_proj` says.
    ignored: beginnings of the names of tensors of encoders, which a text model does not need.
    unused_heads: the same of heads that the class does not have.
    text_in: the key of config.json that holds the language model, in models with encoders; some have it at the top.
    """

    model_type: str
    models: str  # for people
    defaults: Mapping[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    own_keys: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, bool | int | str | None] = field(default_factory=dict)
    equal_keys: Mapping[str, str] = field(default_factory=dict)
    bias: Setting = False  # of q, k, v
    out_bias: Setting = False
    mlp_bias: Setting = False
    mlp_down_bias: bool = False  # its last layer has one, whatever the others have
    head_norm: HeadNorm = "none"
    head_norm_if: str | None = None  # the key of config.json that decides whether there is one
    norm: Norm = field(default_factory=Norm)
    eps_key: str = "rms_norm_eps"
    norms: NormPlaces = "inputs"
    hyper_connections: ConnectionsKind = "none"
    norm_gates_key: str | None = None  # the key with the rank of gates of norms, before mixers and experts
    parallel_if: str | None = None  # the key of config.json by which the norms are `parallel_norms`
    parallel_norms: NormPlaces = "common"
    activation_key: str = "hidden_act"
    activations: Mapping[str, str] = field(default_factory=dict)  # names that mean another one's function here
    is_gated: bool = True
    mlp_width_key: str = "intermediate_size"
    mlp_width_of: int = 1  # gates and ups together have as many outputs as this key says: 2; each of them: 1
    windows: Windows = "none"
    window_if: str | None = None  # the key of config.json that decides whether there is a window
    rope_layers: RopeLayers = "all"
    is_interleaved: bool = False
    partial: float | str = 1.0  # default of `partial_rotary_factor`; a string: key of the number of elements instead
    alibi: Alibi = "none"  # in models without a rotary embedding
    has_distance_biases: bool = False  # scores have learned biases by buckets of distances, the same in all layers
    scale: float | None = None  # of products of queries and keys, whatever config.json says
    position_offset: int | None = None  # of the first position in a table of them; None: there is no table
    counts_offset: bool = False  # `max_position_embeddings` counts the rows before the first position too
    has_sine_positions: bool = False  # the table is computed; else it is learned
    has_rope_mscales: bool = False  # `short_mscale` and `long_mscale` scale cosines and sines
    window_rope: Literal["same", "unscaled", "local"] = "same"  # in layers with a window; local: another base
    multipliers: Mapping[str, str] = field(default_factory=dict)  # field of ModelSpec or Attention -> key
    scales_embedding: Setting = False  # by the square root of the width
    # To the dtype of the model, or to bfloat16 whatever that is
    rounds_embedding_scale: bool | Literal["bfloat16"] = False
    experts: ExpertsKind = "none"
    one_key_if: str | None = None  # the key of config.json by which all heads share one key
    is_grouped: bool = False  # queries, keys and values are stored in one tensor, by key-value head
    qkv_parts: int = 0  # of one tensor that is stored, each queries, values and keys of some heads; 0: there is none
    has_embedding_norm: bool = False
    has_output_bias: Setting = False
    has_value_norm: bool = False
    has_layer_scalars: bool = False
    has_layer_inputs: bool = False
    shares_keys: bool = False  # the last `num_kv_shared_layers` layers read the keys and values of earlier ones
    sinks: Literal["none", "all", "windows"] = "none"  # the layers that have some
    value_dim_key: str | None = None  # the key of config.json with the size of a head's values; None: as of its keys
    window_kv_heads: int = 1  # key-value heads of layers with a window, in multiples of those of others
    has_block_index: bool = False  # an index chooses the blocks of tokens to which queries attend
    has_ngrams: bool = False  # some layers add embeddings of n-grams
    gate: Gate = "none"  # on the outputs of attention
    gate_if: str | None = None  # the key of config.json that decides whether there is one
    is_differential: bool = False  # attention is the difference of that of two heads
    is_latent: bool = False  # attention over a compressed vector of each token
    has_latent_kinds: bool = False  # the same, with other sizes in layers with a window
    is_compressed: bool = False  # attention over a window, and over a vector for several tokens
    index: IndexKind = "none"  # which pairs it rotates, where an index chooses the tokens of attention
    states: StatesKind = "none"  # of other layers
    has_blocks: bool = False  # attention and feed-forward block are a block before a layer, whose weights layers share
    has_depth_scale: bool = False  # `scale_depth` and `dim_model_base` scale what layers add, and logits (MiniCPM)
    has_weight_scales: bool = False  # multipliers.py reads them
    makes: Makes = "tokens"
    head: tuple[HeadLayer, ...] = ()  # layers of a classifier, in their order
    pools: PoolMode = "last"  # of what results are made, unless other files say so
    pools_key: str | None = None  # the key of config.json that says so
    num_labels: int = 2  # unless config.json says otherwise
    is_reward: bool = False  # its scores are compared as they are
    step_token: int | None = None  # at which a process reward model rates a step
    is_causal: bool = True  # tokens see only those before them, unless config.json says that they see all
    is_bare_first: bool = False  # the first layer has no norm before attention: the embedding has one
    num_token_types_key: str | None = None  # the key with the number of types that tokens can have
    renames: Mapping[str, str] = field(default_factory=dict)
    is_transposed: bool = False
    fused_experts: FusedExperts = "stacked"
    ignored: tuple[str, ...] = ()
    unused_heads: tuple[str, ...] = ()
    text_in: str | None = None
