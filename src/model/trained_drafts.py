"""Layers that were trained to draft for a finished model, as the config.json beside them describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config_json import ConfigJson, ModelConfigError, shown
from .drafts import DraftSpec
from .mixers import Attention
from .read import read_config
from .spec import ModelSpec

_EAGLE3_CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}  # by the model_type of its layers
_EAGLE_CLASSES = _EAGLE3_CLASSES | {"mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def eagle3_spec(target: ModelSpec, values: Mapping[str, Any]) -> DraftSpec:
    """values: of the config.json beside the layer, in its authors' form or that of the library `speculators`.

    Raises ModelConfigError for one that is malformed, or was trained for a model of other sizes.
    """
    config = ConfigJson(values)
    if config.flag("fc_norm"):
        raise ModelConfigError("`fc_norm` is true, which is not supported")
    own = _trained_for(target, values, _EAGLE3_CLASSES)
    vocab_size = _draft_vocab_size(config, target.vocab_size)
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
    offset = 0 if key.startswith("aux") else 1  # its authors count outputs of layers, and not inputs
    layers = _layer_ids(key, values.get(key, inner.get(key)), target.num_layers, offset)
    vocab_size = _draft_vocab_size(config, target.vocab_size)
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


def _draft_vocab_size(config: ConfigJson, vocab_size: int) -> int:
    """Number of tokens that a network has logits for. vocab_size: of the model, and the default."""
    found = config.count("draft_vocab_size", vocab_size)
    if found > vocab_size:
        raise ModelConfigError(f"`draft_vocab_size` is {found}, of a vocabulary of {vocab_size} tokens")
    return found


def _read_layers(values: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    key = "eagle_aux_hidden_state_layer_ids"
    inner = values.get("eagle_config")
    found = values.get(key, inner.get(key) if isinstance(inner, Mapping) else None)
    return _layer_ids(key, (2, num_layers // 2, num_layers - 3) if found is None else found, num_layers)


def _layer_ids(key: str, found: Any, num_layers: int, offset: int = 0) -> tuple[int, ...]:
    """The layers whose inputs are read. offset: from the numbers in config.json to theirs."""
    is_list = isinstance(found, list | tuple) and all(isinstance(layer, int) for layer in found)
    if not is_list or not found or not all(0 <= layer + offset < num_layers for layer in found):
        raise ModelConfigError(f"`{key}` is {shown(found)}, and the model has {num_layers} layers")
    return tuple(layer + offset for layer in found)
