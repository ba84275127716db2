"""What a model makes of a whole text, from config.json and its family.

Files of sentence-transformers, which say more, are read by config/checkpoint/pooling_files.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .activations import HIDDEN_ACTS
from .config_json import ConfigJson, ModelConfigError, shown
from .families import Family, HeadLayer
from .family_settings import flag_of
from .pooling import OUTPUT_LAYER, DenseActivation, PoolActivation, PoolDense, PoolHead, Pooling, PoolMode, PoolNorm

_LATE = "late"  # the mean of what the layers of a classifier make of each token
_MAX_LABELS = 1 << 20
_MODES: dict[Any, PoolMode] = {"cls": "cls", "bos": "cls", "mean": "mean", "avg": "mean", "last": "last", "max": "max"}
_LAYER_ACTIVATIONS: dict[str, DenseActivation] = {
    "none": "none",
    "tanh": "tanh",
    "relu": "relu",
    **{name: activation for name, activation in HIDDEN_ACTS.items() if activation != "relu2"},
}
_OF_PROBLEM: dict[str, PoolActivation] = {
    "regression": "none",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
_CLASSES: dict[str, PoolActivation] = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax", "ReLU": "relu"}


def read_pooling(
    config: ConfigJson, whole: Mapping[str, Any], family: Family, hidden: int, eps: float, num_token_types: int
) -> Pooling:
    """The heads that the class has. whole: the file. eps: of the model's norms. Raises ModelConfigError."""
    token_types = num_token_types if num_token_types > 1 else 0
    mode, is_late = family.pools, False
    if family.pools_key is not None and (named := config.get(family.pools_key)) is not None:
        is_late = named == _LATE
        mode = "mean" if is_late else _mode(named, family.pools_key)
    if family.makes in ("tokens", "states"):
        dimensions = _dimensions(config, hidden)
        vector = PoolHead(
            task="embed",
            modes=(mode,),
            activation="normalize",
            width=hidden,
            dimensions=dimensions,
            any_dimension=not dimensions and config.flag("is_matryoshka"),
        )
        if family.makes == "tokens":
            return Pooling(heads=(vector,))
        of_tokens = PoolHead(task="token_embed", modes=(), activation="normalize", width=hidden)
        return Pooling(heads=(vector, of_tokens), token_types=token_types)
    labels = _labels(config, family.num_labels)
    layers = _layers(config, family, hidden, len(labels), eps)
    width = layers[-1].outputs
    if family.makes == "vocabulary":
        last = layers[-1].model_copy(update={"activation": "log1p_relu"})
        weights = PoolHead(task="sparse", modes=("max",), before=(*layers[:-1], last), width=width)
        return Pooling(heads=(weights,), token_types=token_types)
    if family.makes == "labels":
        activation = "none" if family.is_reward else _activation(config, whole, len(labels))
        before, after = (layers, ()) if is_late else ((), layers)
        head = PoolHead(task="classify", modes=(mode,), before=before, after=after, activation=activation, width=width)
    else:
        head = PoolHead(task="token_classify", modes=(), before=layers, activation="softmax", width=width)
    return Pooling(heads=(head,), labels=labels, step_token=family.step_token, token_types=token_types)


def _mode(name: Any, key: str) -> PoolMode:
    if not isinstance(name, str) or name not in _MODES:
        raise ModelConfigError(f"`{key}` is {shown(name)}; supported: {', '.join(_MODES)}", "M304")
    return _MODES[name]


def _labels(config: ConfigJson, usual: int) -> tuple[str, ...]:
    """Names of the labels, by number. usual: how many there are without a name if the file says nothing."""
    named = config.get("id2label")
    if named is None:
        count = config.count("num_labels", usual)
        if count > _MAX_LABELS:
            raise ModelConfigError(f"`num_labels` is {count}; at most {_MAX_LABELS} are supported", "M304")
        return tuple(f"LABEL_{index}" for index in range(count))
    is_table = isinstance(named, Mapping) and 0 < len(named) <= _MAX_LABELS
    if not is_table or any(str(index) not in named for index in range(len(named))):
        raise ModelConfigError("`id2label` must have a name for each number from 0 on")
    return tuple(str(named[str(index)]) for index in range(len(named)))


def _layers(config: ConfigJson, family: Family, hidden: int, num_labels: int, eps: float) -> tuple[PoolDense, ...]:
    sizes = {"hidden": hidden, "labels": num_labels, "vocabulary": config.count("vocab_size")}
    found: list[PoolDense] = []
    for layer in family.head:
        norm = None
        if layer.norm is not None:
            norm = PoolNorm(name=layer.norm, eps=eps, has_bias=layer.norm_has_bias)
        found.append(
            PoolDense(
                name=layer.name,
                inputs=hidden,
                outputs=sizes[layer.outputs],
                has_bias=flag_of(config, layer.has_bias),
                activation=_layer_activation(config, layer),
                norm=norm,
            )
        )
    return tuple(found)


def _layer_activation(config: ConfigJson, layer: HeadLayer) -> DenseActivation:
    if layer.name == OUTPUT_LAYER or layer.activation in _LAYER_ACTIVATIONS:
        return _LAYER_ACTIVATIONS[layer.activation]
    name = config.name(layer.activation)
    if name not in _LAYER_ACTIVATIONS:
        known = ", ".join(_LAYER_ACTIVATIONS)
        raise ModelConfigError(f"`{layer.activation}` is {shown(name)}; supported: {known}", "M304")
    return _LAYER_ACTIVATIONS[name]


def _activation(config: ConfigJson, whole: Mapping[str, Any], num_labels: int) -> PoolActivation:
    """What is applied to scores: what `problem_type` says, or sentence-transformers' key, or what one label needs."""
    problem = config.get("problem_type")
    if problem is not None:
        if problem not in _OF_PROBLEM:
            raise ModelConfigError(f"`problem_type` is {shown(problem)}; known: {', '.join(_OF_PROBLEM)}")
        return _OF_PROBLEM[problem]
    own = whole.get("sentence_transformers")
    named = own.get("activation_fn") if isinstance(own, Mapping) else None
    named = named or whole.get("sbert_ce_default_activation_function")
    if named is None:
        return "sigmoid" if num_labels == 1 else "softmax"
    return read_activation(named)


def read_activation(path: Any) -> PoolActivation:
    """The path of a class of torch. Raises ModelConfigError for another one."""
    place, _, name = str(path).rpartition(".")
    if not place.startswith("torch.nn.") or name not in _CLASSES:
        raise ModelConfigError(
            f"the activation {shown(path)} is not supported; supported: {', '.join(_CLASSES)}", "M304"
        )
    return _CLASSES[name]


def _dimensions(config: ConfigJson, hidden: int) -> tuple[int, ...]:
    """Sizes to which vectors may be cut, ascending."""
    listed = config.get("matryoshka_dimensions")
    if listed is None:
        return ()
    is_list = isinstance(listed, list) and all(type(size) is int and 0 < size <= hidden for size in listed)
    if not is_list or not listed:
        raise ModelConfigError(f"`matryoshka_dimensions` must be a list of numbers from 1 to {hidden}")
    return tuple(sorted(set(listed)))
