"""The layer for multi-token prediction in a model's checkpoint, as its family has it: arXiv:2412.19437, section 2.2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .config_json import ModelConfigError, shown
from .drafts import EMBEDDING_SIDE, HIDDEN_SIDE, JOIN, DraftSpec
from .feed_forwards import MLP, Experts
from .mixers import Attention, LatentAttention
from .read import read_config
from .spec import LayerSpec, ModelSpec
from .tensors import FINAL_NORM

_COUNT_KEYS = "num_nextn_predict_layers", "mtp_num_hidden_layers"
# Nemotron-H's parts of the layer that drafts, and of its other layers
_PATTERN_KEY, _LAYER_PATTERN_KEY, _LAYER_TYPES_KEY = (
    *("mtp_hybrid_override_pattern", "hybrid_override_pattern"),
    "layers_block_type",
)


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
