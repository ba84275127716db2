"""DraftSpec: a network that drafts tokens for a model: its own layers as a ModelSpec, and what it gets of the model.

- model: a language model of its own with the same vocabulary.
- mtp: the layer for multi-token prediction that a checkpoint brings beside its layers, arXiv:2412.19437, section 2.2.
- eagle: layers that were trained for a finished model, and go on from its last hidden states, arXiv:2401.15077.
- eagle3: a layer that was trained for a finished model, and reads the input of three of its layers, arXiv:2503.01840.
- dflash: layers that attend to what some layers of the model have computed, and draft a block of tokens that see each
  other in one pass, arXiv:2602.06036.

All but the first begin with the embedding of a token and what the model has computed for the token before it. Their
embedding is the model's, and so is the output layer of mtp and eagle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from .config_json import ConfigJson, ModelConfigError, shown
from .feed_forwards import MLP, Experts
from .mixers import Attention, LatentAttention
from .read import read_config
from .record import Record
from .spec import LayerSpec, ModelSpec
from .tensor import Tensor, linear_tensors
from .tensors import FINAL_NORM, OUTPUT, layer_tensors

DraftKind = Literal["model", "mtp", "eagle", "eagle3", "dflash"]
JOIN, EMBEDDING_SIDE, HIDDEN_SIDE, JOIN_NORM = "fc", "embedding_norm", "hidden_norm", "input_norm"
MASK_HIDDEN = "mask_hidden"  # what is read instead of the model's hidden states of a token that is not known
TOKEN_OFFSETS = "d2t"  # of the ids of an output layer of fewer tokens, to those of the model
REMEMBERED_TOKENS = 64  # of each sequence: what the model has computed of them
OUTER_TENSORS = (*(f"{name}.weight" for name in (JOIN, EMBEDDING_SIDE, HIDDEN_SIDE, JOIN_NORM, "lm_head")), MASK_HIDDEN)
_EAGLE3_CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}  # by the model_type of its one layer
_EAGLE_CLASSES = _EAGLE3_CLASSES | {"mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_COUNT_KEYS = "num_nextn_predict_layers", "mtp_num_hidden_layers"
# Nemotron-H's parts of the layer that drafts, and of its other layers
_PATTERN_KEY, _LAYER_PATTERN_KEY, _LAYER_TYPES_KEY = (
    *("mtp_hybrid_override_pattern", "hybrid_override_pattern"),
    "layers_block_type",
)


class DraftSpec(Record):
    """
    spec: of its layers. The vocabulary of `eagle3` is that of its output layer, which may have fewer tokens.
    vocab_size: of the model.
    read_layers: of the model, whose inputs it reads side by side; empty: it reads what comes after the last one.
    feeds_normed: its output after its last norm is the hidden state of the next draft; False: before it.
    has_last_norm: False: the output layer reads what comes after its last layer.
    has_join_bias: of the product that joins the embedding and the hidden state.
    hidden_first: the order of the two; False: the embedding is first.
    norms_joined: what it joins is normed before, as one vector.
    translates: a language model with other tokens than the model's: those that both have are drafted.
    mask_token_id: stands for tokens that are not known, where all of a draft is computed in one step: P-EAGLE, PARD.
        None: one token after the other is drafted.
    most_drafts: that it makes in one pass; None: any number.
    has_own_output: whether it has an output layer; else it uses the model's.
    """

    kind: DraftKind
    spec: ModelSpec
    vocab_size: int
    read_layers: tuple[int, ...] = ()
    feeds_normed: bool = False
    has_last_norm: bool = True
    has_join_bias: bool = False
    hidden_first: bool = False
    norms_joined: bool = False
    translates: bool = False
    mask_token_id: int | None = None
    most_drafts: int | None = None
    has_own_output: bool = False

    @property
    def is_block(self) -> bool:
        """Whether the drafts of a step see each other. What it reads of the model is only attended to."""
        return self.kind == "dflash"

    @property
    def norms_sides(self) -> bool:
        """Whether the embedding and the hidden state are normed before they are joined."""
        return self.kind == "mtp"

    @property
    def num_joined(self) -> int:
        """How many vectors its first product joins."""
        return len(self.read_layers) or 2

    @property
    def reads_model(self) -> bool:
        """Whether it begins with what the model has computed."""
        return self.kind != "model"


@dataclass(frozen=True, slots=True)
class MtpForm:
    """What the layer that drafts is like in the checkpoints of a family, and how its parts are called.

    names: beginnings of names in the files -> those of the engine, in this order; {} is the number of the model's
        layers.
    feeds_normed, has_last_norm, hidden_first: as in DraftSpec.
    has_experts: it has experts if any layer of the model does. False: it has none, as the model's first layers.
    has_window: its attention is that of layers with a window.
    types_key: the key of config.json that lists what its parts are, each of them a layer; None if it is one layer.
    """

    names: Mapping[str, str]
    feeds_normed: bool = False
    has_last_norm: bool = True
    hidden_first: bool = False
    has_experts: bool = True
    has_window: bool = False
    types_key: str | None = None


_FIRST, _LAYERS = "model.layers.0.", "model.layers."
_AFTER_THE_LAST = MtpForm(
    {
        "model.layers.{}.enorm.": f"{EMBEDDING_SIDE}.",
        "model.layers.{}.hnorm.": f"{HIDDEN_SIDE}.",
        "model.layers.{}.eh_proj.": f"{JOIN}.",
        "model.layers.{}.shared_head.norm.": f"{FINAL_NORM}.",
        "model.layers.{}.": _FIRST,
    },
)
_SEPARATE = MtpForm(
    {
        "mtp.pre_fc_norm_embedding.": f"{EMBEDDING_SIDE}.",
        "mtp.pre_fc_norm_hidden.": f"{HIDDEN_SIDE}.",
        "mtp.fc.": f"{JOIN}.",
        "mtp.norm.": f"{FINAL_NORM}.",
        "mtp.layers.0.": _FIRST,
    },
    feeds_normed=True,
)
_MIMO = MtpForm(
    {
        "model.mtp_layers.0.token_layernorm.": f"{EMBEDDING_SIDE}.",
        "model.mtp_layers.0.hidden_layernorm.": f"{HIDDEN_SIDE}.",
        "model.mtp_layers.0.input_proj.": f"{JOIN}.",
        "model.mtp_layers.0.final_layernorm.": f"{FINAL_NORM}.",
        "model.mtp_layers.0.": _FIRST,
    },
    feeds_normed=True,
    hidden_first=True,
)
_ERNIE = MtpForm(
    {
        "model.mtp_emb_norm.0.": f"{EMBEDDING_SIDE}.",
        "model.mtp_hidden_norm.0.": f"{HIDDEN_SIDE}.",
        "model.mtp_linear_proj.0.": f"{JOIN}.",
        "model.mtp_block.0.": _FIRST,
    },
    has_last_norm=False,
    has_experts=False,
)
_NEMOTRON_H = MtpForm(
    {
        "mtp.layers.0.enorm.": f"{EMBEDDING_SIDE}.",
        "mtp.layers.0.hnorm.": f"{HIDDEN_SIDE}.",
        "mtp.layers.0.eh_proj.": f"{JOIN}.",
        "mtp.layers.1.final_layernorm.": f"{FINAL_NORM}.",
        "mtp.layers.": _LAYERS,
    },
    feeds_normed=True,
    types_key="mtp_layers_block_type",
)
MTP_FORMS: Mapping[str, MtpForm] = {
    **dict.fromkeys(("DeepseekV3ForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM"), _AFTER_THE_LAST),
    **dict.fromkeys(("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"), _AFTER_THE_LAST),
    **dict.fromkeys(
        (
            *("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
            *("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
        ),
        _SEPARATE,
    ),
    "MellumForCausalLM": replace(_SEPARATE, has_window=True),
    "MiMoForCausalLM": _MIMO,
    "Ernie4_5_MoeForCausalLM": _ERNIE,
    "NemotronHForCausalLM": _NEMOTRON_H,
}


def mtp_spec(target: ModelSpec, values: Mapping[str, Any]) -> DraftSpec:
    """The first layer for multi-token prediction of a model. values: of the language model's part of its config.json.

    Raises ModelConfigError for a model without one, or whose form is not known.
    """
    form = MTP_FORMS.get(target.architecture)
    if form is None:
        raise ModelConfigError(f"describes `{target.architecture}`, whose layers for drafts this build does not read")
    if not any(values.get(key) for key in _COUNT_KEYS):
        raise ModelConfigError(f"describes no layer for drafts: `{_COUNT_KEYS[0]}` or `{_COUNT_KEYS[1]}` counts them")
    layers = (_mtp_layer(target, form),) if form.types_key is None else _mtp_parts(values, form.types_key)
    return DraftSpec(
        kind="mtp",
        spec=target.model_copy(update={"layers": layers, "weight_scales": ()}),
        vocab_size=target.vocab_size,
        feeds_normed=form.feeds_normed,
        has_last_norm=form.has_last_norm,
        hidden_first=form.hidden_first,
    )


def _mtp_layer(target: ModelSpec, form: MtpForm) -> LayerSpec:
    """The last layer of the model with attention, apart from what the form says."""
    layers = [layer for layer in reversed(target.layers) if layer.has_keys]
    # A layer for drafts chooses the tokens of sparse attention with an index of its own.
    layers = [each for each in layers if not (isinstance(each.mixer, LatentAttention) and each.mixer.shares_index)]
    if form.has_window:
        layers = [layer for layer in layers if isinstance(layer.mixer, Attention) and layer.mixer.window] or layers
    kind = Experts if form.has_experts else MLP
    of_kind = [layer for layer in reversed(target.layers) if isinstance(layer.feed_forward, kind)]
    if not of_kind and not form.has_experts:
        raise ModelConfigError("describes a layer for drafts without experts, of which the model has none")
    return layers[0].model_copy(update={"feed_forward": (of_kind or layers)[0].feed_forward})


def _mtp_parts(values: Mapping[str, Any], key: str) -> tuple[LayerSpec, ...]:
    """Layers of one part each, as a key of config.json lists them, or a pattern in letters."""
    kinds = values.get(key, ["full_attention", "moe"])
    pattern = values.get(_PATTERN_KEY)
    listed = {_LAYER_PATTERN_KEY: pattern} if pattern is not None else {_LAYER_TYPES_KEY: kinds}
    count = len(pattern) if isinstance(pattern, str) else len(kinds) if isinstance(kinds, list | tuple) else 0
    dropped = (_LAYER_PATTERN_KEY, _LAYER_TYPES_KEY, key, _PATTERN_KEY)
    own = {name: value for name, value in values.items() if name not in dropped}
    spec, _ = read_config({**own, **listed, "num_hidden_layers": count})
    if count != 2 or spec.has_states:
        raise ModelConfigError(f"`{key}` is {shown(pattern or kinds)}; supported: attention and experts")
    return spec.layers


def eagle3_spec(target: ModelSpec, values: Mapping[str, Any]) -> DraftSpec:
    """values: of the config.json beside the layer, in its authors' form or that of the library `speculators`.

    Raises ModelConfigError for one that is malformed, or was trained for a model of other sizes.
    """
    config = ConfigJson(values)
    if config.flag("fc_norm"):
        raise ModelConfigError("`fc_norm` is true, which is not supported")
    own = _trained_for(target, values, _EAGLE3_CLASSES)
    vocab_size = config.count("draft_vocab_size", own.vocab_size)
    if vocab_size > target.vocab_size:
        raise ModelConfigError(f"`draft_vocab_size` is {vocab_size}, of a vocabulary of {target.vocab_size} tokens")
    layer = own.layers[0].model_copy(
        update={"joins_embedding": "normed" if config.flag("norm_before_residual") else "plain"}
    )
    spec = own.model_copy(update={"layers": (layer, *own.layers[1:]), "vocab_size": vocab_size})
    read_layers = _read_layers(values, target.num_layers)
    mask = mask_token_id(values, target.vocab_size, "mask_token_id", "pard_token")
    if mask is None and values.get("speculators_model_type") == "peagle":
        raise ModelConfigError("`mask_token_id` is missing: the token that stands for those that are not known")
    return DraftSpec(
        kind="eagle3",
        spec=spec,
        vocab_size=target.vocab_size,
        read_layers=read_layers,
        feeds_normed=config.flag("norm_output"),
        norms_joined=config.flag("norm_before_fc"),
        mask_token_id=mask,
        has_own_output=True,
    )


def mask_token_id(values: Mapping[str, Any], vocab_size: int, *keys: str) -> int | None:
    """The token that stands for those that are not known; None for a network that has none.

    Raises ModelConfigError for one outside of the vocabulary.
    """
    for key in keys:
        if (found := values.get(key)) is None:
            continue
        if not isinstance(found, int) or not 0 <= found < vocab_size:
            raise ModelConfigError(f"`{key}` is {shown(found)}, and the vocabulary has {vocab_size} tokens")
        return found
    return None


def dflash_spec(target: ModelSpec, values: Mapping[str, Any]) -> DraftSpec:
    """values: of the config.json beside the layers, in their authors' form or that of the library `speculators`.

    Raises ModelConfigError for one that is malformed, or was trained for a model of other sizes.
    """
    config = ConfigJson(values)
    if config.flag("sample_from_anchor"):
        raise ModelConfigError("`sample_from_anchor` is true, which is not supported")
    own = _trained_for(target, values, {"qwen3": "Qwen3ForCausalLM"})
    if any(isinstance(layer.mixer, Attention) and layer.mixer.window for layer in own.layers):
        raise ModelConfigError("describes layers with a window, in which blocks of drafts are not supported")
    inner = values.get("dflash_config", {})
    if not isinstance(inner, Mapping):
        raise ModelConfigError("`dflash_config` must be an object")
    mask = mask_token_id({**values, **inner}, target.vocab_size, "mask_token_id")
    if mask is None:
        raise ModelConfigError("`mask_token_id` is missing: the token that stands for those that are not known")
    block_size = config.count("block_size")
    if block_size < 2:
        raise ModelConfigError(
            f"`block_size` is {block_size}: the first token of a block is known, and the others drafted"
        )
    key = "aux_hidden_state_layer_ids" if "aux_hidden_state_layer_ids" in values else "target_layer_ids"
    found = values.get(key, inner.get(key))
    offset = 0 if key.startswith("aux") else 1  # its authors count outputs of layers, and not inputs
    is_list = isinstance(found, list | tuple) and all(isinstance(layer, int) for layer in found)
    layers = tuple(layer + offset for layer in found) if isinstance(found, list | tuple) and is_list else ()
    if not layers or not all(0 <= layer < target.num_layers for layer in layers):
        raise ModelConfigError(f"`{key}` is {shown(found)}, and the model has {target.num_layers} layers")
    vocab_size = config.count("draft_vocab_size", own.vocab_size)
    if vocab_size > target.vocab_size:
        raise ModelConfigError(f"`draft_vocab_size` is {vocab_size}, of a vocabulary of {target.vocab_size} tokens")
    return DraftSpec(
        kind="dflash",
        spec=own.model_copy(update={"vocab_size": vocab_size}),
        vocab_size=target.vocab_size,
        read_layers=layers,
        mask_token_id=mask,
        most_drafts=block_size - 1,
        has_own_output="draft_vocab_size" in values,
    )


def eagle_spec(target: ModelSpec, values: Mapping[str, Any]) -> DraftSpec:
    """values: of the config.json beside the layers, in their authors' form or that of the library `speculators`.

    Raises ModelConfigError for one that is malformed, or was trained for a model of other sizes.
    """
    if ConfigJson(values).flag("layernorms"):
        raise ModelConfigError("`layernorms` is true, which is not supported")
    own = _trained_for(target, values, _EAGLE_CLASSES)
    # The first layer gets what joins the embedding and a hidden state that was normed before.
    first = own.layers[0].model_copy(update={"norms": "feed_forward"})
    spec = own.model_copy(update={"layers": (first, *own.layers[1:])})
    has_bias = ConfigJson(values).flag("fusion_bias")
    return DraftSpec(kind="eagle", spec=spec, vocab_size=target.vocab_size, has_last_norm=False, has_join_bias=has_bias)


def _trained_for(target: ModelSpec, values: Mapping[str, Any], classes: Mapping[str, str]) -> ModelSpec:
    """The layers that were trained for a model, as far as they are like those of another model.

    classes: of these models, by `model_type`.

    Raises ModelConfigError.
    """
    inner = values.get("transformer_layer_config", values)
    if not isinstance(inner, Mapping):
        raise ModelConfigError("`transformer_layer_config` must be an object")
    kind = str(inner.get("model_type", "llama"))
    if kind not in classes:
        raise ModelConfigError(f"`model_type` is {shown(kind)}; drafts come from layers of {', '.join(classes)}")
    quantised = {key: values[key] for key in ("quantization_config",) if key in values}
    own, _ = read_config({"num_hidden_layers": 1, **quantised, **inner, "architectures": [classes[kind]]})
    for name, mine, its in (
        ("hidden_size", own.hidden_size, target.hidden_size),
        ("target_hidden_size", values.get("target_hidden_size") or target.hidden_size, target.hidden_size),
        ("vocab_size", own.vocab_size, target.vocab_size),
    ):
        if mine != its:
            raise ModelConfigError(f"`{name}` is {mine}, and that of the model is {its}: it drafts for another one")
    longest = max(own.max_position_embeddings, target.max_position_embeddings)
    return own.model_copy(update={"is_tied": False, "max_position_embeddings": longest})


def _read_layers(values: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    key = "eagle_aux_hidden_state_layer_ids"
    inner = values.get("eagle_config")
    found = values.get(key, inner.get(key) if isinstance(inner, Mapping) else None)
    layers = (2, num_layers // 2, num_layers - 3) if found is None else found
    is_list = isinstance(layers, list | tuple) and all(isinstance(layer, int) for layer in layers)
    if not is_list or not layers or not all(0 <= layer < num_layers for layer in layers):
        raise ModelConfigError(f"`{key}` is {shown(layers)}, and the model has {num_layers} layers")
    return tuple(layers)


def draft_tensors(draft: DraftSpec) -> Iterator[Tensor]:
    """The tensors of a network that reads the model, under the names by which the engine reads them."""
    spec, hidden = draft.spec, draft.spec.hidden_size
    for index, layer in enumerate(spec.layers):
        for tensor in layer_tensors(spec, layer):
            yield replace(tensor, name=f"model.layers.{index}.{tensor.name}")
    norms = (FINAL_NORM,) if draft.has_last_norm else ()
    sides = (EMBEDDING_SIDE, HIDDEN_SIDE) if draft.norms_sides else (HIDDEN_SIDE,) if draft.is_block else ()
    for name in (*norms, *sides):
        yield Tensor(f"{name}.weight", (hidden,))
    yield from linear_tensors(JOIN, hidden, draft.num_joined * hidden, draft.has_join_bias)
    if draft.has_own_output:
        yield Tensor(OUTPUT, (spec.vocab_size, hidden))
    if draft.norms_joined:
        yield Tensor(f"{JOIN_NORM}.weight", (draft.num_joined * hidden,))
    if draft.mask_token_id is not None and not draft.is_block:
        yield Tensor(MASK_HIDDEN, (1, draft.num_joined * hidden))
    if spec.vocab_size != draft.vocab_size:
        yield Tensor(TOKEN_OFFSETS, (spec.vocab_size,))


def draft_shapes(draft: DraftSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of `draft_tensors`, each expert's too."""
    return {
        tensor.name.replace("{}", str(copy)): tensor.shape
        for tensor in draft_tensors(draft)
        for copy in range(tensor.copies)
    }
