"""Files of sentence-transformers beside a model: what is made of its hidden states, prompts, and the longest text.

`modules.json` lists what follows the transformer, each with a folder of its own:

    Transformer -> Pooling (1_Pooling) -> Dense (2_Dense) -> Normalize (3_Normalize)

A module, or a configuration of one, that this reader does not know is an error: a wrong pool makes vectors that look
right. Files of BGE-M3, which are no modules, are read too.

Source: sentence-transformers 6, whose releases before 5.4 wrote other keys of Pooling.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from ...model.config_json import ModelConfigError, shown
from ...model.pooling import (
    OUTPUT_LAYER,
    DenseActivation,
    PoolActivation,
    PoolDense,
    PoolHead,
    Pooling,
    PoolMode,
    Similarity,
)
from ...model.read_pooling import read_activation
from ...model.spec import ModelSpec
from ..errors import ModelFilesError
from .late_interaction import late_settings
from .layout import HEAD_FILES
from .model_files import is_plain_name, read_json, read_json_if_any, read_json_list
from .stored import StoredTensor
from .torch_zip import read_torch_file

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
_TEXT_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
SPARSE_FILE, TOKENS_FILE = HEAD_FILES
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # of a module, in its folder
_MODES: dict[str, PoolMode] = {  # as releases since 5.4 write them
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
_OLD_MODES: dict[str, PoolMode] = {  # keys of older releases, in the order in which results are joined
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
}
_DENSE_ACTIVATIONS: dict[str, DenseActivation] = {
    "Identity": "none",
    "Tanh": "tanh",
    "ReLU": "relu",
    "SiLU": "silu",
    "GELU": "gelu",
    "Sigmoid": "sigmoid",
}
_SIMILARITIES: Mapping[str, Similarity] = {name: name for name in get_args(Similarity)} | {"cos_sim": "cosine"}
_OF_TOKENS = ("maxsim",)
_WITHOUT_EFFECT = ("Transformer", "Dropout")


def with_pooling_files(spec: ModelSpec, folder: Path) -> ModelSpec:
    """The model as the files beside it describe what is made of a text; as it was without such files.

    Raises ModelFilesError for a module, or a key of one, that this build does not know.
    """
    if spec.pooling is None:
        return spec
    path, masks = folder / MODULES, None
    if os.path.lexists(path):
        modules = _Modules(spec, folder)
        spec, masks = modules.read(path), modules.masks
    if (folder / SPARSE_FILE).is_file() and (folder / TOKENS_FILE).is_file():
        spec = _with_heads_of_bge(spec, folder)
    assert spec.pooling is not None
    transformer, changes = _text_settings(folder)
    changes |= _settings(folder, spec.pooling)
    changes |= late_settings(folder, folder / SETTINGS, read_json_if_any(folder / SETTINGS), transformer, masks)
    return spec.model_copy(update={"pooling": spec.pooling.model_copy(update=changes)})


def head_files(spec: ModelSpec) -> tuple[str, ...]:
    """Files of the tensors of heads that the model's own weight files do not have, relative to its folder."""
    layers = () if spec.pooling is None else spec.pooling.layers
    return tuple(dict.fromkeys(layer.file for layer in layers if layer.file is not None))


def _without_output(spec: ModelSpec) -> ModelSpec:
    """The body of the model."""
    return spec.model_copy(update={"generates": False, "has_output": False, "has_output_bias": False, "is_tied": False})


@dataclass
class _Modules:
    """Reads the modules after the transformer, in their order."""

    spec: ModelSpec
    folder: Path
    modes: tuple[PoolMode, ...] = ()  # () before the pool
    width: int = 0
    includes_prompt: bool = True
    before: list[PoolDense] = field(default_factory=list)
    after: list[PoolDense] = field(default_factory=list)
    activation: PoolActivation = "none"
    masks: Mapping[str, Any] | None = None  # of MultiVectorMask
    score: PoolDense | None = None  # of the output layer
    is_splade: bool = False

    def read(self, path: Path) -> ModelSpec:
        self.width = self.spec.hidden_size
        modules = read_json_list(path)
        if not modules:
            raise ModelFilesError(f"{path}: lists no modules", code="M303")
        for module in modules:
            match module:
                case {"type": str(kind), "path": str(place)}:
                    pass
                case _:
                    raise ModelFilesError(f"{path}: each module must have a type and a path", code="M303")
            if place and not is_plain_name(place):
                raise ModelFilesError(f"{path}: {shown(place)} is no plain folder name", code="M303")
            name = kind.rpartition(".")[2]
            if name == "Transformer" and place:
                raise ModelFilesError(
                    f"{path}: the transformer is in the folder {shown(place)}; serve this folder instead", code="M304"
                )
            reader = _READERS.get(name)
            if reader is None and name not in _WITHOUT_EFFECT:
                known = ", ".join((*_WITHOUT_EFFECT, *_READERS))
                raise ModelFilesError(f"{path}: the module `{name}` is not supported; supported: {known}", code="M304")
            if reader is not None:
                reader(self, place, read_json_if_any(self.folder / place / "config.json") if place else {})
        return self._spec()

    def pooling(self, place: str, config: Mapping[str, Any]) -> None:
        path = self.folder / place / "config.json"
        if self.modes:
            raise ModelFilesError(f"{self.folder / MODULES}: it has two modules that pool", code="M304")
        self.modes = _modes(path, config)
        width = config.get("embedding_dimension", config.get("word_embedding_dimension"))
        if width not in (None, self.width):
            raise ModelFilesError(
                f"{path}: its vectors have {shown(width)} elements, those of the model {self.width}", code="M306"
            )
        self.width *= len(self.modes)
        includes = config.get("include_prompt", True)
        if not isinstance(includes, bool):
            raise ModelFilesError(f"{path}: `include_prompt` must be true or false", code="M303")
        self.includes_prompt = includes

    def dense(self, place: str, config: Mapping[str, Any]) -> None:
        path = self.folder / place / "config.json"
        source = str(config.get("module_input_name", "token_embeddings" if not self.modes else "sentence_embedding"))
        if source not in ("sentence_embedding", "token_embeddings"):
            raise ModelFilesError(
                f"{path}: `module_input_name` is {shown(source)}, which is not supported", code="M304"
            )
        if config.get("module_output_name", source) != source:
            raise ModelFilesError(f"{path}: a layer that does not replace its input is not supported", code="M304")
        if (source == "token_embeddings") != (not self.modes) or self.activation != "none":
            raise ModelFilesError(f"{path}: a layer at this place is not supported", code="M304")
        inputs, outputs = config.get("in_features"), config.get("out_features")
        if inputs != self.width or type(outputs) is not int or not 0 < outputs <= 1 << 20:
            raise ModelFilesError(
                f"{path}: a layer of {shown(inputs)} inputs and {shown(outputs)} outputs, after {self.width} elements",
                code="M306",
            )
        adds_input = bool(config.get("use_residual", False))
        if adds_input and inputs != outputs:
            raise ModelFilesError(f"{path}: `use_residual` with another size of outputs is not supported", code="M304")
        layers = self.after if self.modes else self.before
        layers.append(
            PoolDense(
                name=f"{place}.linear",
                inputs=self.width,
                outputs=outputs,
                has_bias=bool(config.get("bias", True)),
                activation=_dense_activation(path, config),
                adds_input=adds_input,
                file=_weights_in(self.folder, place),
            )
        )
        self.width = outputs

    def normalize(self, place: str, config: Mapping[str, Any]) -> None:
        self.activation = "normalize"

    def splade_pooling(self, place: str, config: Mapping[str, Any]) -> None:
        path = self.folder / place / "config.json"
        for key, supported in (("pooling_strategy", "max"), ("activation_function", "relu")):
            if config.get(key, supported) != supported:
                raise ModelFilesError(f"{path}: `{key}` is {shown(config[key])}; supported: {supported}", code="M304")
        self.is_splade = True

    def logit_score(self, place: str, config: Mapping[str, Any]) -> None:
        path, size = self.folder / place / "config.json", self.spec.vocab_size
        wanted, subtracted = config.get("true_token_id"), config.get("false_token_id")
        for token in (wanted, wanted if subtracted is None else subtracted):
            if type(token) is not int or not 0 <= token < size:
                raise ModelFilesError(f"{path}: {shown(token)} is no token of a vocabulary of {size}", code="M306")
        self.score = PoolDense(
            name=OUTPUT_LAYER,
            inputs=self.spec.hidden_size,
            outputs=1,
            has_bias=False,
            rows=((wanted, subtracted),),
        )

    def multi_vector_mask(self, place: str, config: Mapping[str, Any]) -> None:
        if config.get("keep_only_token_ids") is not None:
            path = self.folder / place / "config.json"
            raise ModelFilesError(f"{path}: `keep_only_token_ids` is not supported", code="M304")
        self.masks = config

    def _spec(self) -> ModelSpec:
        spec, path = self.spec, self.folder / MODULES
        pooling = spec.pooling
        assert pooling is not None
        if self.score is not None:
            if not spec.has_output:
                raise ModelFilesError(f"{path}: LogitScore needs a model with an output layer", code="M304")
            head = PoolHead(task="classify", after=(self.score,), activation="sigmoid", width=1)
            pooling = pooling.model_copy(update={"heads": (head,), "labels": ("LABEL_0",), "pair": "chat"})
            return spec.model_copy(update={"pooling": pooling, "generates": False})
        if self.is_splade:
            if pooling.head("sparse") is None:
                raise ModelFilesError(
                    f"{path}: SpladePooling needs a class with logits of the vocabulary, not {spec.architecture}",
                    code="M304",
                )
            return spec
        if not self.modes and not self.before:  # a classifier, whose class says everything
            return spec
        base, heads = pooling.head("embed"), []
        if self.modes:
            of_model = {} if base is None else {"dimensions": base.dimensions, "any_dimension": base.any_dimension}
            heads.append(
                PoolHead(
                    task="embed",
                    modes=self.modes,
                    before=tuple(self.before),
                    after=tuple(self.after),
                    activation=self.activation,
                    includes_prompt=self.includes_prompt,
                    width=self.width,
                    **of_model,
                )
            )
        width = self.before[-1].outputs if self.before else spec.hidden_size
        heads.append(
            PoolHead(task="token_embed", modes=(), before=tuple(self.before), activation="normalize", width=width)
        )
        pooling = pooling.model_copy(update={"heads": tuple(heads), "labels": ()})
        return _without_output(spec).model_copy(update={"pooling": pooling})


_READERS = {
    "Pooling": _Modules.pooling,
    "Dense": _Modules.dense,
    "Normalize": _Modules.normalize,
    "SpladePooling": _Modules.splade_pooling,
    "LogitScore": _Modules.logit_score,
    "MultiVectorMask": _Modules.multi_vector_mask,
}


def _with_heads_of_bge(spec: ModelSpec, folder: Path) -> ModelSpec:
    """The vectors of tokens, and their weights, that BGE-M3 makes besides a vector."""
    pooling, hidden = spec.pooling, spec.hidden_size
    assert pooling is not None
    layers: list[PoolDense] = []
    for file in (TOKENS_FILE, SPARSE_FILE):
        weight = _tensor_in(folder / file, "weight")
        if len(weight.shape) != 2 or weight.shape[1] != hidden:
            raise ModelFilesError(
                f"{folder / file}: `weight` has shape {list(weight.shape)}; the model is {hidden} wide", code="M306"
            )
        name = file.removesuffix(".pt")
        layers.append(PoolDense(name=name, inputs=hidden, outputs=weight.shape[0], file=file))
    of_tokens, of_weights = layers
    added = (
        PoolHead(
            task="token_embed",
            modes=(),
            before=(of_tokens,),
            activation="normalize",
            width=of_tokens.outputs,
            skips_first=1,
        ),
        PoolHead(
            task="sparse",
            modes=(),
            before=(of_weights,),
            activation="relu",
            width=of_weights.outputs,
            skips_first=1,
            skips_last=1,
        ),
    )
    kept = tuple(head for head in pooling.heads if head.task == "embed")
    return spec.model_copy(update={"pooling": pooling.model_copy(update={"heads": (*kept, *added)})})


def _tensor_in(path: Path, name: str) -> StoredTensor:
    tensors = read_torch_file(path)
    if name not in tensors:
        raise ModelFilesError(f"{path}: holds no tensor `{name}`", code="M302")
    return tensors[name]


def _modes(path: Path, config: Mapping[str, Any]) -> tuple[PoolMode, ...]:
    """What is pooled, in either form. Raises ModelFilesError for an unknown one."""
    written = config.get("pooling_mode")
    old = [key for key in config if key.startswith("pooling_mode_")]
    if written is not None:
        names = [written] if isinstance(written, str) else written
        if not isinstance(names, list) or not names or any(name not in _MODES for name in names):
            raise ModelFilesError(
                f"{path}: `pooling_mode` is {shown(written)}; supported: {', '.join(_MODES)}", code="M304"
            )
        return tuple(_MODES[name] for name in names)
    unknown = [key for key in old if config[key] is True and key not in _OLD_MODES]
    if unknown:
        raise ModelFilesError(
            f"{path}: `{unknown[0]}` is not supported; supported: {', '.join(_OLD_MODES)}", code="M304"
        )
    found = tuple(mode for key, mode in _OLD_MODES.items() if config.get(key) is True)
    if not found:
        raise ModelFilesError(
            f"{path}: says in no known way what is pooled: `pooling_mode`, or keys such as `pooling_mode_mean_tokens`",
            code="M304",
        )
    return found


def _dense_activation(path: Path, config: Mapping[str, Any]) -> DenseActivation:
    named = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    place, _, name = str(named).rpartition(".")
    if not place.startswith("torch.nn") or name not in _DENSE_ACTIVATIONS:
        known = ", ".join(_DENSE_ACTIVATIONS)
        raise ModelFilesError(f"{path}: `activation_function` is {shown(named)}; supported: {known}", code="M304")
    return _DENSE_ACTIVATIONS[name]


def _weights_in(folder: Path, place: str) -> str:
    for name in _WEIGHTS:
        if os.path.lexists(folder / place / name):
            return f"{place}/{name}"
    raise ModelFilesError(f"{folder / place}: holds no {' or '.join(_WEIGHTS)}", code="M302")


def _text_settings(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the transformer, and of them the longest text and the case of letters."""
    path = next((folder / name for name in _TEXT_SETTINGS if os.path.lexists(folder / name)), None)
    if path is None:
        return {}, {}
    values, found = read_json(path), {}
    longest, lowers = values.get("max_seq_length"), values.get("do_lower_case", False)
    if longest is not None:
        if type(longest) is not int or longest < 1:
            raise ModelFilesError(f"{path}: `max_seq_length` is {shown(longest)}; it must be a number", code="M306")
        found["max_length"] = longest
    if not isinstance(lowers, bool):
        raise ModelFilesError(f"{path}: `do_lower_case` must be true or false", code="M306")
    return values, {**found, "lowers_case": lowers}


def _settings(folder: Path, pooling: Pooling) -> dict[str, Any]:
    """Prompts, similarity, activation of scores, and what marks queries and documents."""
    path = folder / SETTINGS
    values, found = read_json_if_any(path), {}
    prompts = values.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ModelFilesError(f"{path}: `prompts` must map names to texts", code="M306")
    default = values.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ModelFilesError(f"{path}: `default_prompt_name` is {shown(default)}, which is no prompt", code="M306")
    similarity = str(values.get("similarity_fn_name") or "cosine").lower()
    if similarity in _OF_TOKENS:
        similarity = "cosine"  # of vectors of tokens, of which the largest are added
    if similarity not in _SIMILARITIES:
        raise ModelFilesError(
            f"{path}: `similarity_fn_name` is {shown(similarity)}; supported: {', '.join(_SIMILARITIES)}", code="M304"
        )
    if values.get("truncate_dim") is not None:
        raise ModelFilesError(f"{path}: `truncate_dim` is not supported; a request names `dimensions`", code="M304")
    if values.get("activation_fn") is not None and (head := pooling.head("classify")) is not None:
        try:
            activation = read_activation(values["activation_fn"])
        except ModelConfigError as error:
            raise ModelFilesError(f"{path}: {error}", code=error.code) from None
        others = tuple(each for each in pooling.heads if each.task != "classify")
        found["heads"] = (*others, head.model_copy(update={"activation": activation}))
    return {
        **found,
        "named_prompts": tuple(prompts.items()),
        "default_prompt": default,
        "similarity": _SIMILARITIES[similarity],
    }
