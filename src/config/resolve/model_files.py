"""ModelFiles: everything that the files of a model say about it, read without loading the weights.

model_location.py finds the files, model_config.py reads the description, model_class.py its class, model_weights.py the
headers of the weights, model_tokenizer.py the tokenizer and the ends of answers. This module puts them together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model import gguf
from ...model.config_json import ConfigJson, ModelConfigError, shown
from ...model.mixers import Attention, LatentAttention
from ...model.quantised import scheme_of
from ...model.read import config_json as config_json_of
from ...model.read import read_config
from ...model.rope import SCALINGS, apply_options, is_one_rope, longest_stable, read_theta
from ...model.spec import ModelSpec
from ...model.through_transformers import Implementation, implementation
from ...model.wrappers import language_model
from ..checkpoint.chat_templates import templates_in
from ..checkpoint.described import described_weights
from ..checkpoint.gguf import read_gguf
from ..checkpoint.gguf_files import read_generation_config
from ..checkpoint.layout import CONSOLIDATED_FORMATS, WeightFiles, read_weight_files
from ..checkpoint.model_files import is_gguf, read_json, read_json_if_any
from ..checkpoint.pooling_files import with_pooling_files
from ..checkpoint.repository_code import RepositoryCode
from ..checkpoint.settings import settings_problem
from ..checkpoint.token_scores import with_token_scores
from ..errors import ModelFilesError, ModelNotLocal
from ..model_facts import Fact, model_facts
from ..schema.types import format_about as about
from . import sampling
from .adapter_files import read_named_adapters
from .described_model import ModelFiles
from .draft_files import read_draft_files
from .model_class import has_code, repository_code
from .model_config import apply_overrides, is_consolidated, read_values, used_for_rope
from .model_location import config_path, hub_cache, model_folder, shown_at
from .model_tokenizer import eos_ids, tokenizer_path_of, with_end_of_tokenizer
from .model_weights import most_common_dtype, own_codes, read_weights, stored_as_of
from .pooler_options import with_pooling_options
from .sharded_state import ShardedState, read_sharded_state

if TYPE_CHECKING:
    from ..deployment import Deployment

GENERATION_CONFIG = "generation_config.json"
# Scalings in config.json beside the length before them. `linear` and `llama3` are written beside the length after them.
_LENGTHENED = ("dynamic", "yarn")
_WHY_LEFT_OUT = {
    "draft layers": "this build does not draft with them",
    "encoders": "this build reads text",
    "other heads": "no result of the model's class is made with them",
}


def read_model_files(deployment: Deployment, *, describes: bool = False) -> ModelFiles:
    """Everything known about the model without loading it.

    describes: weight files and a tokenizer that are missing are described by config.json instead, for a plan;
        `ModelFiles.missing_files` names them.

    Raises ModelFilesError (exit code 3), naming file and fault; ModelNotLocal if it must be downloaded first.
    """
    cache = hub_cache(deployment)
    folder = model_folder(deployment, cache)
    path = config_path(deployment, folder, cache)
    state = _sharded_state(deployment, folder)
    try:
        described = _describe(deployment, path, folder, state)
    except ModelConfigError as error:
        raise ModelFilesError(f"{path}: {error}", code=error.code) from None
    spec, chosen, window = described.spec, described.chosen, described.window
    if is_gguf(path):
        folder = path.parent
    missing = _Missing(describes)
    weights = None if state else missing.weights(path, spec, folder, deployment, is_native=chosen == "native")
    tokenizer_path = missing.tokenizer(deployment, folder, path)
    has_theta = chosen == "native" or described.has_one_rope
    ends = eos_ids(path, described.config_json, folder / GENERATION_CONFIG, spec.vocab_size)
    known_ends = tuple(token for token in ends if token < spec.vocab_size)
    return ModelFiles(
        model_path=str(folder),
        config_path=str(path.parent),
        spec=spec,
        implementation=chosen,
        code=described.code,
        config_json=described.values if chosen == "transformers" else {},
        max_context=described.max_context,
        window=window,
        rope_theta=_theta(spec, described.values) if has_theta else None,
        own_rope_theta=described.own_theta if has_theta else None,
        checkpoint_dtype=_checkpoint_dtype(spec, weights, state),
        eos_token_ids=with_end_of_tokenizer(known_ends, tokenizer_path, spec.vocab_size),
        bos_token_id=described.bos_token_id,
        pad_token_id=described.pad_token_id,
        sampling_defaults=_sampling_defaults(path, folder, deployment),
        tokenizer_path=tokenizer_path,
        template_fact=_template_fact(deployment.model.model, spec, tokenizer_path),
        missing_files=tuple(missing.names),
        notes=(*_notes(described, weights), *_notes_on_ends(ends, spec.vocab_size), *_notes_on_prompts(spec)),
        **_about_weights(weights, spec, chosen) if state is None else _about_state(state, folder, deployment),
        unused_overrides=described.unused_overrides,
        adapters=read_named_adapters(deployment, spec) if chosen == "native" else (),
        draft=read_draft_files(deployment, spec, described.values, folder) if chosen == "native" else None,
    )


@dataclass(frozen=True, slots=True)
class _Described:
    """What the description of the model says, after the options that change it."""

    values: dict[str, Any]  # of config.json, changed by `model.hf_overrides` and the options of the rotary embedding
    config_json: ConfigJson
    spec: ModelSpec
    chosen: Implementation
    code: RepositoryCode | None
    max_context: int
    window: int | None
    has_one_rope: bool
    own_theta: float | None  # without the options
    bos_token_id: int | None
    pad_token_id: int | None
    unused_overrides: tuple[str, ...]


def _describe(deployment: Deployment, path: Path, folder: Path, state: ShardedState | None) -> _Described:
    """path: of config.json, params.json or the GGUF file. Raises ModelConfigError, ModelFilesError."""
    model = deployment.model
    written = language_model(read_values(path)) if state is None or state.gguf_config is None else state.gguf_config
    merged = apply_overrides(written, model.hf_overrides)
    code = repository_code(deployment, path, folder, merged)
    own_theta, has_one_rope = read_theta(config_json_of(merged)), is_one_rope(merged)
    values = apply_options(merged, model.rope_scaling, model.rope_theta)
    spec, config_json = read_config(values)
    if not is_gguf(path):
        check_method(spec, model.quantization)
    chosen = implementation(spec, model.model_impl)
    spec = _with_format(deployment, path, spec, chosen, is_packed=state is not None)
    if chosen == "transformers":
        spec = spec.with_expanded_attention().model_copy(update={"pooling": None})
    else:
        spec = with_pooling_files(spec, path.parent if is_gguf(path) else folder)
        fact = model_facts().reranker(model.model, spec.model_type)
        spec = with_token_scores(spec, config_json, fact, folder)
    spec = with_pooling_options(spec, model, keeps_output=state is not None or spec.weight_names != "hf")
    if model.rope_scaling or model.rope_theta != "auto":
        _check_rope_options(spec, chosen, has_one_rope)
    bos, pad = config_json.optional_int("bos_token_id"), config_json.optional_int("pad_token_id")
    window = max((window for window in spec.windows if window is not None), default=None)
    max_context = _max_context(spec, model.rope_scaling)
    if chosen == "transformers":
        max_context = longest_stable(values, max_context)
    if spec.pooling is not None and spec.pooling.max_length is not None and not spec.generates:
        max_context = min(max_context, spec.pooling.max_length)
    if model.disable_sliding_window and window is not None:
        max_context, spec = min(max_context, window), spec.without_windows()
    known = {*written, *config_json.read, *used_for_rope(merged)}  # transformers reads other keys
    unused = tuple(key for key in model.hf_overrides if key not in known) if chosen == "native" else ()
    return _Described(
        values, config_json, spec, chosen, code, max_context, window, has_one_rope, own_theta, bos, pad, unused
    )


def _with_format(
    deployment: Deployment, path: Path, spec: ModelSpec, chosen: Implementation, *, is_packed: bool
) -> ModelSpec:
    """The spec with the names that its tensors have in the format of the weight files."""
    if is_consolidated(path):
        _check_consolidated(deployment, chosen, is_packed=is_packed)
        return spec.with_weights_of("mistral", has_pairs=True)
    if is_gguf(path):
        _check_gguf(deployment, chosen, is_packed=is_packed)
        found = gguf.architecture(read_gguf(path).values)
        return spec.with_weights_of("gguf", has_pairs=found.has_pairs, has_whole_norms=found.has_whole_norms)
    return spec


def _check_rope_options(spec: ModelSpec, chosen: Implementation, has_one_rope: bool) -> None:
    """Raises ModelConfigError where `model.rope_scaling` and `model.rope_theta` would change nothing."""
    if chosen == "transformers" and not has_one_rope:
        raise ModelConfigError(
            "describes no single rotary embedding for all layers, so `model.rope_scaling` and `model.rope_theta` have "
            "nothing to change; write the keys of this model in `model.hf_overrides`"
        )
    if chosen == "native" and not spec.has_rotation:
        raise ModelConfigError(
            "describes a model without a rotary embedding, so `model.rope_scaling` and `model.rope_theta` have nothing "
            "to change"
        )


class _Missing:
    """Reads files that a plan can do without, and knows which of them are not here."""

    def __init__(self, describes: bool) -> None:
        self._describes = describes
        self.names: list[str] = []

    def weights(
        self, path: Path, spec: ModelSpec, folder: Path, deployment: Deployment, *, is_native: bool
    ) -> WeightFiles | None:
        is_described = is_native and spec.quantization is not None and not spec.quantization.problem
        described = described_weights(folder, spec) if is_described else None
        if deployment.load.load_format == "dummy":
            return described
        try:
            return read_weights(path, spec, folder, deployment, is_native=is_native)
        except ModelFilesError as error:
            if not (self._describes and error.code == "M302"):
                raise
        self.names.append("weight files")
        return described

    def tokenizer(self, deployment: Deployment, folder: Path, path: Path) -> str | None:
        try:
            return tokenizer_path_of(deployment, folder, path)
        except ModelFilesError as error:
            is_missing = error.code in ("M302", "M307") or isinstance(error, ModelNotLocal)
            if not (self._describes and (is_missing or self.names)):
                raise
            self.names.append("the tokenizer" if is_missing else "a tokenizer that can be read")
            return None


def _notes(described: _Described, weights: WeightFiles | None) -> Iterator[str]:
    """Sentences about parts of the repository that are not used."""
    if has_code(described.values) and described.code is None:
        by = "this build" if described.chosen == "native" else "the transformers library"
        architecture = described.values["architectures"][0]
        yield f"the code that `auto_map` names is not run: `{architecture}` is a class of {by}"
    for part, size in weights.left_out.items() if weights is not None else ():
        yield f"{about(size)} of {part} in the weight files are not loaded: {_WHY_LEFT_OUT[part]}"


def _notes_on_ends(ends: tuple[int, ...], vocab_size: int) -> Iterator[str]:
    if outside := [token for token in ends if token >= vocab_size]:
        shown_ids = ", ".join(map(str, outside))
        yield f"`eos_token_id` holds {shown_ids}, and the vocabulary has {vocab_size} tokens: no answer ends with it"


def _notes_on_prompts(spec: ModelSpec) -> Iterator[str]:
    """The default prompt is only reported: OpenAI's clients expect that their texts are what is embedded."""
    if spec.pooling is not None and (name := spec.pooling.default_prompt) is not None:
        yield f"the default prompt `{name}` is written only before texts of requests that name it (`prompt_name`)"


def _sharded_state(deployment: Deployment, folder: Path) -> ShardedState | None:
    """Packed weights of a folder; None without any, or if another format is asked for."""
    return read_sharded_state(folder) if deployment.load.load_format in ("auto", "sharded_state") else None


def _about_weights(weights: WeightFiles | None, spec: ModelSpec, chosen: Implementation) -> dict[str, Any]:
    """Fields of ModelFiles about the weights."""
    if weights is None:
        return {"weight_files": (), "weight_format": "dummy"}
    return {
        "weight_files": weights.names,
        "weight_format": weights.format,
        "stored_as": stored_as_of(weights),
        "own_codes": own_codes(weights, spec) if chosen == "native" else (),
        "num_stored": sum(weights.count().values()) if chosen == "transformers" else None,
    }


def _about_state(state: ShardedState, folder: Path, deployment: Deployment) -> dict[str, Any]:
    """The same of a sharded state, whose files hold other tensors than the model has. Raises ModelFilesError."""
    load = deployment.load
    settings = (
        {} if settings_problem("sharded_state", load.model_loader_extra_config) else load.model_loader_extra_config
    )
    return {
        "weight_files": read_weight_files(folder, "sharded_state", load.ignore_patterns, settings).names,
        "weight_format": "sharded_state",
        "stored_as": state.stored_as,
        "own_codes": state.own_codes,
        "num_stored": state.num_stored,
        "state": state.shape,
    }


def _checkpoint_dtype(spec: ModelSpec, weights: WeightFiles | None, state: ShardedState | None) -> str:
    if state is not None:
        return state.shape.dtype
    return spec.dtype if weights is None else most_common_dtype(weights)


def check_method(spec: ModelSpec, wanted: str | None) -> None:
    """Raises ModelConfigError if `model.quantization` names a method that is not the checkpoint's."""
    if wanted is None or scheme_of(wanted) is not None:
        return
    if spec.quantization is None:
        raise ModelConfigError(
            f"describes no quantised checkpoint, and `model.quantization` is {wanted}; on a CPU, int8 and int4 "
            "quantise while the model loads",
            "M304",
        )
    if spec.quantization.name != wanted:
        raise ModelConfigError(
            f"`quant_method` is {shown(spec.quantization.name)}, and `model.quantization` is {wanted}; leave it out",
            "M304",
        )


def _template_fact(model: str, spec: ModelSpec, tokenizer_path: str | None) -> Fact | None:
    fact = model_facts().of(model, spec.model_type)
    return None if fact is None or tokenizer_path is None or templates_in(Path(tokenizer_path)) else fact


def _check_consolidated(deployment: Deployment, chosen: Implementation, *, is_packed: bool) -> None:
    """is_packed: it describes a sharded state."""
    load_format = deployment.load.load_format
    if load_format not in CONSOLIDATED_FORMATS and not is_packed:
        raise ModelConfigError(
            f"describes consolidated safetensors, which `load.load_format: {load_format}` does not read", "M304"
        )
    if chosen == "transformers":
        raise ModelConfigError(
            "transformers reads config.json only; `model.model_impl: native` runs this model, or a repository with a "
            "config.json can be served",
            "M304",
        )


def _check_gguf(deployment: Deployment, chosen: Implementation, *, is_packed: bool) -> None:
    """is_packed: it describes a sharded state."""
    model, load_format = deployment.model, deployment.load.load_format
    if load_format not in ("auto", "gguf", "dummy") and not is_packed:
        raise ModelConfigError(f"is a GGUF file, which `load.load_format: {load_format}` does not read", "M304")
    if model.quantization != "gguf" and model.quantization is not None and scheme_of(model.quantization) is None:
        raise ModelConfigError(
            f"is a GGUF file, and `model.quantization` is {model.quantization}; leave it out", "M304"
        )
    if model.hf_config_path != "auto":
        raise ModelConfigError("describes itself, so `model.hf_config_path` has no effect; remove it", "M304")
    if model.config_format not in ("auto", "gguf"):
        raise ModelConfigError(
            f"describes itself, so `model.config_format: {model.config_format}` has no effect; remove it", "M304"
        )
    if chosen == "transformers":
        raise ModelConfigError("is a GGUF file, which `model.model_impl: native` runs; transformers does not", "M304")


def _theta(spec: ModelSpec, values: Mapping[str, Any]) -> float:
    """The base of the rotary embedding, of the first layer if they differ."""
    rope = spec.attention.rope if spec.attention is not None else None
    return rope.theta if rope is not None else read_theta(ConfigJson(values))


def _max_context(spec: ModelSpec, scaling: Mapping[str, Any]) -> int:
    """Tokens that the model can take: more with a scaling."""
    limit = spec.max_position_embeddings
    kind, factor = scaling.get("rope_type") or scaling.get("type"), scaling.get("factor")
    trained = scaling.get("original_max_position_embeddings")
    ropes = (
        mixer.rope
        for layer in spec.layers
        for mixer in layer.mixers
        if isinstance(mixer, Attention | LatentAttention) and mixer.rope is not None
    )
    rope = next(ropes, None)
    if not scaling and rope is not None and rope.kind in _LENGTHENED:
        kind, factor = rope.kind, rope.factor
        trained = None if rope.kind == "dynamic" else rope.original_max_position_embeddings
    if kind in SCALINGS and isinstance(factor, int | float) and factor > 1:
        trained = trained or limit
        return max(limit, int(trained * factor)) if isinstance(trained, int) else limit
    return limit


def _sampling_defaults(config: Path, folder: Path, deployment: Deployment) -> dict[str, Any]:
    """Read the file that `model.generation_config` names; empty for `none`, or if the model brings none."""
    source = deployment.model.generation_config
    if source == "none":
        return {}
    path = folder if source == "auto" else Path(deployment.located("model.generation_config"))
    if os.path.isdir(path):
        path = path / GENERATION_CONFIG
    if source == "auto" and is_gguf(config):
        path, content = config, read_generation_config(config)
    else:
        with shown_at("model.generation_config", source != "auto"):
            content = read_json_if_any(path) if source == "auto" else read_json(path)
    values = sampling.from_generation_config(content)
    if problem := sampling.problem(values):
        raise ModelFilesError(f"{path}: {problem}", code="M306")
    return values
