"""ModelFiles: the model's config.json, generation_config.json, tokenizer and the headers of its weight files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model import gguf
from ...model.config_json import ConfigJson, ModelConfigError, shown
from ...model.params_json import config_of
from ...model.quantised import scheme_of
from ...model.read import config_json as config_json_of
from ...model.read import read_config
from ...model.rope import SCALINGS, apply_options, is_one_rope, longest_stable, read_theta
from ...model.sizes import fused_name
from ...model.spec import ModelSpec
from ...model.tensors import EMBEDDING, OUTPUT, model_tensors
from ...model.through_transformers import Implementation, implementation
from ..checkpoint.chat_templates import TEKKEN_JSON, templates_in
from ..checkpoint.gguf import read_gguf
from ..checkpoint.gguf_files import choose, found_in, has_quantisation, read_generation_config
from ..checkpoint.gguf_files import read_config as read_gguf_config
from ..checkpoint.group_layouts import group_layout, is_of_bfloat16, keeps_expert
from ..checkpoint.layout import (
    CONSOLIDATED_FORMATS,
    FILES,
    WeightFiles,
    has_files,
    read_gguf_files,
    read_weight_files,
)
from ..checkpoint.match import tensors_of
from ..checkpoint.model_files import (
    CONFIG_JSON,
    PARAMS_JSON,
    is_gguf,
    is_hub_id,
    locate,
    read_json,
    read_json_if_any,
    split_quantisation,
)
from ..checkpoint.repository_code import COMMIT, RepositoryCode, read_code
from ..checkpoint.repository_code import PATTERN as CODE_PATTERN
from ..checkpoint.settings import settings_problem
from ..checkpoint.stored import FLOAT_DTYPES, StoredTensor
from ..errors import ModelFilesError, ModelNotLocal
from ..model_facts import Fact, model_facts
from . import sampling
from .resolved import ModelFiles
from .sharded_state import VOCABULARY_GGUF, ShardedState, has_vocabulary, read_sharded_state
from .stored_as import OwnCodes, StoredAs

if TYPE_CHECKING:
    from ..deployment import Deployment

_ANY_MODEL_FILE = ("*.json", "*.safetensors", "*.bin", "*.pt", "*.pth")
_GGUF_FILES = ("*.gguf", "*.GGUF")
TOKENIZER_JSON = "tokenizer.json"
OLDER_VOCABULARIES = ("vocab.json", "tokenizer.model", "spiece.model", "vocab.txt")
VOCABULARIES = {
    "slow": OLDER_VOCABULARIES,
    "mistral": (TEKKEN_JSON,),
}  # by model.tokenizer_mode, of which one is needed
GENERATION_CONFIG = "generation_config.json"
QUANTIZE_CONFIG = "quantize_config.json"  # of old GPTQ checkpoints
HF_QUANT_CONFIG = "hf_quant_config.json"  # of modelopt's, which older versions do not write into config.json
_LAYER = re.compile(r"(?:model\.|model\.language_model\.|language_model\.model\.|)layers\.(\d{1,9})\.")


def read_model_files(deployment: Deployment) -> ModelFiles:
    """Everything known about the model without loading it.

    Raises ModelFilesError (exit code 3), naming file and fault; ModelNotLocal if it must be downloaded first.
    """
    model, cache = deployment.model, hub_cache(deployment)
    folder = model_folder(deployment, cache)
    path = config_path(deployment, folder, cache)
    state = _sharded_state(deployment, folder)
    try:
        written = read_values(path) if state is None or state.gguf_config is None else state.gguf_config
        merged = _apply_overrides(written, model.hf_overrides)
        code = _repository_code(deployment, path, folder, merged)
        own_theta = read_theta(config_json_of(merged))
        has_one_rope = is_one_rope(merged)
        values = apply_options(merged, model.rope_scaling, model.rope_theta)
        spec, config_json = read_config(values)
        if not is_gguf(path):
            _check_method(spec, model.quantization)
        chosen = implementation(spec, model.model_impl)
        if is_consolidated(path):
            _check_consolidated(deployment, chosen, is_packed=state is not None)
            spec = spec.with_weights_of("mistral", has_pairs=True)
        elif is_gguf(path):
            _check_gguf(deployment, chosen, is_packed=state is not None)
            found = gguf.architecture(read_gguf(path).values)
            spec = spec.with_weights_of("gguf", has_pairs=found.has_pairs, has_whole_norms=found.has_whole_norms)
        if chosen == "transformers":
            spec = spec.with_expanded_attention()
            if not has_one_rope and (model.rope_scaling or model.rope_theta != "auto"):
                raise ModelConfigError(
                    "describes no single rotary embedding for all layers, so `model.rope_scaling` and "
                    "`model.rope_theta` have nothing to change; write the keys of this model in `model.hf_overrides`"
                )
        elif not spec.has_rotation and (model.rope_scaling or model.rope_theta != "auto"):
            raise ModelConfigError(
                "describes a model without a rotary embedding, so `model.rope_scaling` and `model.rope_theta` have "
                "nothing to change"
            )
        bos, pad = config_json.optional_int("bos_token_id"), config_json.optional_int("pad_token_id")
    except ModelConfigError as error:
        raise ModelFilesError(f"{path}: {error}", code=error.code) from None
    window = max((window for window in spec.windows if window is not None), default=None)
    max_context = _max_context(spec, model.rope_scaling)
    if chosen == "transformers":
        max_context = longest_stable(values, max_context)
    if model.disable_sliding_window and window is not None:
        max_context, spec = min(max_context, window), spec.without_windows()
    if is_gguf(path):
        folder = path.parent
    weights = None if state else _weights(path, spec, folder, deployment, is_native=chosen == "native")
    theta = _theta(spec, values) if chosen == "native" or has_one_rope else None
    tokenizer_path = _tokenizer_path(deployment, folder, path)
    return ModelFiles(
        model_path=str(folder),
        config_path=str(path.parent),
        spec=spec,
        implementation=chosen,
        code=code,
        config_json=values if chosen == "transformers" else {},
        max_context=max_context,
        window=window,
        rope_theta=theta,
        own_rope_theta=own_theta if theta is not None else None,
        checkpoint_dtype=_checkpoint_dtype(spec, weights, state),
        eos_token_ids=_eos_ids(path, config_json, folder / GENERATION_CONFIG, spec.vocab_size),
        bos_token_id=bos,
        pad_token_id=pad,
        sampling_defaults=_sampling_defaults(path, folder, deployment),
        tokenizer_path=tokenizer_path,
        template_fact=_template_fact(model.model, spec, tokenizer_path),
        **_about_weights(weights, spec, chosen) if state is None else _about_state(state, folder, deployment),
        unused_overrides=tuple(
            key
            for key in model.hf_overrides
            if key not in {*written, *config_json.read} and chosen == "native"  # transformers reads other keys
        ),
    )


def _sharded_state(deployment: Deployment, folder: Path) -> ShardedState | None:
    """Of a folder with packed weights, unless another format is asked for."""
    return read_sharded_state(folder) if deployment.load.load_format in ("auto", "sharded_state") else None


def _about_weights(weights: WeightFiles | None, spec: ModelSpec, chosen: Implementation) -> dict[str, Any]:
    """Fields of ModelFiles."""
    if weights is None:
        return {"weight_files": (), "weight_format": "dummy"}
    return {
        "weight_files": weights.names,
        "weight_format": weights.format,
        "stored_as": _stored_as(weights),
        "own_codes": _own_codes(weights, spec) if chosen == "native" else (),
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
    return spec.dtype if weights is None else _most_common_dtype(weights)


def _check_method(spec: ModelSpec, wanted: str | None) -> None:
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


def hub_cache(deployment: Deployment) -> str | None:
    """Folder of downloaded models; None for the hub's own."""
    return deployment.located("load.download_dir") if deployment.load.download_dir is not None else None


def model_folder(deployment: Deployment, cache: str | None) -> Path:
    """The model's directory; without a description of its own where `model.hf_config_path` names another."""
    name, revision = deployment.located("model.model"), deployment.model.revision
    wanted = config_files(deployment) if deployment.model.hf_config_path == "auto" else _ANY_MODEL_FILE
    quantisation = split_quantisation(name)[1]
    if quantisation is None or not is_hub_id(name):
        return locate(name, revision, cache, *wanted, *_GGUF_FILES)
    folder = locate(name, revision, cache, "*")
    if not has_quantisation(folder, quantisation):
        raise ModelNotLocal(name, str(folder))
    return folder


def gguf_file(deployment: Deployment, folder: Path) -> Path | None:
    """The GGUF file that is the model; None if it is in another format. Raises ModelFilesError if one must be chosen.

    A directory with weights in another format is a model in that format, unless `load.load_format` is `gguf`.
    """
    name = deployment.located("model.model")
    if is_gguf(name):
        return Path(os.path.expanduser(name))
    quantisation, load_format = split_quantisation(name)[1], deployment.load.load_format
    if (quantisation is not None and is_hub_id(name)) or "gguf" in (load_format, deployment.model.config_format):
        return choose(folder, quantisation)
    if load_format in ("auto", "sharded_state") and has_vocabulary(folder):
        return folder / VOCABULARY_GGUF
    if load_format != "auto" or any(has_files(folder, kind) for kind in FILES):
        return None
    return choose(folder) if found_in(folder) else None


def config_files(deployment: Deployment) -> tuple[str, ...]:
    """Names of the file that describes the model; the first that is there counts."""
    wanted = deployment.model.config_format
    if wanted == "mistral" or (wanted == "auto" and deployment.load.load_format == "mistral"):
        return (PARAMS_JSON,)
    return (CONFIG_JSON,) if wanted == "hf" else (CONFIG_JSON, PARAMS_JSON)


def config_path(deployment: Deployment, folder: Path, cache: str | None) -> Path:
    """The config.json that counts, or the params.json, or the GGUF file, which describes itself."""
    model, names = deployment.model, config_files(deployment)
    if (file := gguf_file(deployment, folder)) is not None:
        return file
    if model.hf_config_path != "auto":
        revision = own_revision(deployment, model.hf_config_path)
        folder = locate(deployment.located("model.hf_config_path"), revision, cache, *names)
    return folder / next((name for name in names if os.path.lexists(folder / name)), names[0])


def is_consolidated(path: Path) -> bool:
    """Whether a file of `config_path` describes weights of Mistral AI's own format."""
    return path.name == PARAMS_JSON


def read_values(path: Path) -> dict[str, Any]:
    """The content of config.json, or of params.json or a GGUF header in its terms.

    Raises ModelConfigError for one that cannot be translated.
    """
    if is_gguf(path):
        return read_gguf_config(path)
    content = read_json(path)
    if is_consolidated(path):
        return config_of(content)
    if content.get("quantization_config"):
        return content
    if found := read_json_if_any(path.parent / QUANTIZE_CONFIG):
        content["quantization_config"] = {"quant_method": "gptq", **found}
    elif found := read_json_if_any(path.parent / HF_QUANT_CONFIG):
        own = found.get("quantization")
        content["quantization_config"] = {"quant_method": "modelopt", **(own if isinstance(own, dict) else found)}
    return content


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


def own_revision(deployment: Deployment, name: str) -> str | None:
    """`revision` belongs to the model's repository; another repository has its own main branch."""
    return deployment.model.revision if name == deployment.model.model else None


def tokenizer_revision(deployment: Deployment) -> str | None:
    model = deployment.model
    name = model.model if model.tokenizer == "auto" else model.tokenizer
    return model.tokenizer_revision or own_revision(deployment, name)


def tokenizer_source(deployment: Deployment) -> str | None:
    """Name of the repository or directory that a tokenizer is looked for in; None if the model's directory has it."""
    model = deployment.model
    if model.skip_tokenizer_init:
        return None
    if model.tokenizer != "auto":
        return deployment.located("model.tokenizer")
    name = deployment.located("model.model")
    return name if model.tokenizer_revision is not None and is_hub_id(name) else None


def merge_deep(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` on top; mappings are merged key by key, all else is replaced."""
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        merged[key] = merge_deep(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _apply_overrides(written: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """hf_overrides on top; the old names of rope keys count where the file uses the new ones."""
    merged = merge_deep(written, overrides)
    rope = merged.get("rope_parameters")
    if isinstance(rope, dict) and "rope_parameters" not in overrides:
        rope = dict(rope)
        if isinstance(overrides.get("rope_scaling"), Mapping):
            rope = {"rope_theta": rope.get("rope_theta"), **overrides["rope_scaling"]}
        if "rope_theta" in overrides:
            rope["rope_theta"] = overrides["rope_theta"]
        merged["rope_parameters"] = rope
    return merged


def code_folder(deployment: Deployment, folder: Path) -> Path:
    """The directory whose code `model.trust_remote_code` allows.

    Raises ModelNotLocal if it must be downloaded, ModelFilesError for code from the hub that is not pinned.
    """
    name, revision = deployment.located("model.model"), deployment.model.code_revision
    if not is_hub_id(name):
        return folder
    if not COMMIT.fullmatch(revision or ""):
        raise ModelFilesError(
            f"`model.trust_remote_code` runs code of `{name}`, and `model.code_revision` is no commit; write the one "
            "whose code you have read",
            code="M304",
        )
    return locate(name, revision, hub_cache(deployment), CODE_PATTERN)


def _repository_code(
    deployment: Deployment, path: Path, folder: Path, config: Mapping[str, Any]
) -> RepositoryCode | None:
    """The code that defines the model's class, if it is allowed. Raises as `_check_class` does."""
    model = deployment.model
    is_allowed = model.trust_remote_code and model.model_impl == "transformers"
    _check_class({key: value for key, value in config.items() if key != "auto_map" or not is_allowed})
    if not is_allowed or not config.get("auto_map"):
        return None
    return read_code(path, code_folder(deployment, folder), config["auto_map"])


def _check_class(config: Mapping[str, Any]) -> None:
    """Raises ModelConfigError for a model without a class, or with one that is code from its repository."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelConfigError("`architectures` must list the model's class")
    for place in ("", *(key for key, value in config.items() if isinstance(value, Mapping))):
        part = config[place] if place else config
        if part.get("auto_map"):
            null = f"{{{place}: {{auto_map: null}}}}" if place else "{auto_map: null}"
            allowed = "`model.trust_remote_code: true` with `model.model_impl: transformers` allows"
            raise ModelConfigError(
                f"`auto_map`{f' in `{place}`' * bool(place)} says that this model runs code from its repository, which "
                f"{'this build never does' if place else allowed}; if its weights are a plain `{names[0]}`, "
                f"`model.hf_overrides: {null}` says so",
                "M304",
            )


def _theta(spec: ModelSpec, values: Mapping[str, Any]) -> float:
    """The base of the rotary embedding, of the first layer if they differ."""
    rope = spec.attention.rope if spec.attention is not None else None
    return rope.theta if rope is not None else read_theta(ConfigJson(values))


def _max_context(spec: ModelSpec, scaling: Mapping[str, Any]) -> int:
    """Tokens that the model can take: more with a scaling."""
    limit = spec.max_position_embeddings
    kind, factor = scaling.get("rope_type") or scaling.get("type"), scaling.get("factor")
    if kind in SCALINGS and isinstance(factor, int | float) and factor > 1:
        trained = scaling.get("original_max_position_embeddings") or limit
        return max(limit, int(trained * factor)) if isinstance(trained, int) else limit
    return limit


def _weights(
    path: Path, spec: ModelSpec, folder: Path, deployment: Deployment, *, is_native: bool
) -> WeightFiles | None:
    """The files, which have the model's tensors and no others; None with load_format dummy.

    is_native: otherwise the names of the tensors are known when transformers has built the model.
    """
    load = deployment.load
    if load.load_format == "dummy":
        return None
    settings = load.model_loader_extra_config
    if settings_problem(load.load_format, settings):
        settings = {}  # reported by a rule
    load_format = load.load_format
    if spec.weight_names == "gguf":
        weights = read_gguf_files(path)
        return replace(weights, tensors=tensors_of(folder, weights.tensors, spec))
    if spec.weight_names == "mistral":
        load_format = "mistral"
    elif load_format == "mistral":
        load_format = "auto"  # reported by a rule
    weights = read_weight_files(folder, load_format, load.ignore_patterns, settings, load.pt_load_map_location)
    if not is_native:
        return weights
    _check_layers(path, spec, weights.tensors)
    return replace(weights, tensors=tensors_of(folder, weights.tensors, spec))


def _check_layers(path: Path, spec: ModelSpec, tensors: Iterable[str]) -> None:
    """One sentence instead of a list of tensors."""
    stored = 1 + max((int(match[1]) for name in tensors if (match := _LAYER.match(name))), default=-1)
    if stored and stored != spec.num_layers:
        key = "n_layers" if spec.weight_names == "mistral" else "num_hidden_layers"
        raise ModelFilesError(
            f"{path}: `{key}` is {spec.num_layers}, but its weight files have {stored} layers", code="M306"
        )


def _stored_as(weights: WeightFiles) -> tuple[StoredAs, ...]:
    found: dict[str, StoredAs] = {}
    for tensor in weights.tensors.values():
        if tensor.packed is not None or tensor.is_quantised:
            method = tensor.packed.method.shown if tensor.packed is not None else f"GGUF {tensor.dtype}"
            before = found.get(method, StoredAs(method=method, num_matrices=0, num_bytes=0))
            counts = {
                "num_matrices": before.num_matrices + 1,
                "num_bytes": before.num_bytes + tensor.num_bytes,
            }
            found[method] = before.model_copy(update=counts)
    return tuple(found.values())


def _own_codes(weights: WeightFiles, spec: ModelSpec) -> tuple[OwnCodes, ...]:
    """Of linear layers all of whose parts have codes, of embeddings, and of experts."""
    if not any(tensor.packed is not None or tensor.is_quantised for tensor in weights.tensors.values()):
        return ()
    wholes: dict[str, list[StoredTensor]] = {}
    experts: dict[str, list[str]] = {}  # the matrices of each
    for tensor in model_tensors(spec):
        is_kept = tensor.is_matrix or tensor.name in (EMBEDDING, OUTPUT)
        for index in range(tensor.copies) if is_kept else ():
            if (stored := weights.tensors.get(name := tensor.name.format(index))) is None:
                continue
            whole = fused_name(name)
            if tensor.copies > 1 and whole not in wholes:
                experts.setdefault(whole.rpartition(".")[0], []).append(whole)
            wholes.setdefault(whole, []).append(stored)
    for names in experts.values():
        if not keeps_expert([wholes[name] for name in names]):
            for name in names:
                del wholes[name]
    found: dict[tuple[int, int, bool, bool], OwnCodes] = {}
    for name, parts in wholes.items():
        layouts = [(layout, stored.shape) for stored in parts if (layout := group_layout(stored)) is not None]
        if len(layouts) < len(parts):
            continue
        outputs, inputs = sum(stored.shape[0] for stored in parts), parts[0].shape[1]
        rounds, is_of_expert = any(is_of_bfloat16(stored) for stored in parts), name.rpartition(".")[0] in experts
        none = OwnCodes(
            outputs=outputs,
            inputs=inputs,
            num_matrices=0,
            num_bytes=0,
            row_bytes=0,
            is_of_bfloat16=rounds,
            are_of_experts=is_of_expert,
        )
        before = found.get(key := (outputs, inputs, rounds, is_of_expert), none)
        counts = {
            "num_matrices": before.num_matrices + 1,
            "num_bytes": before.num_bytes + sum(layout.num_bytes(*shape) for layout, shape in layouts),
            "row_bytes": before.row_bytes + sum(layout.row_bytes(*shape) for layout, shape in layouts),
        }
        found[key] = before.model_copy(update=counts)
    return tuple(found.values())


def _most_common_dtype(weights: WeightFiles) -> str:
    """That of most parameters; bfloat16 of quantised ones."""
    counts = weights.count()
    return FLOAT_DTYPES.get(max(counts, key=lambda dtype: counts[dtype]), "bfloat16")


def _sampling_defaults(config: Path, folder: Path, deployment: Deployment) -> dict[str, Any]:
    """From the file that `model.generation_config` names; nothing for `none`, or if the model brings none."""
    source = deployment.model.generation_config
    if source == "none":
        return {}
    path = folder if source == "auto" else Path(deployment.located("model.generation_config"))
    if os.path.isdir(path):
        path = path / GENERATION_CONFIG
    if source == "auto" and is_gguf(config):
        path, content = config, read_generation_config(config)
    else:
        content = read_json_if_any(path) if source == "auto" else read_json(path)
    values = sampling.from_generation_config(content)
    if problem := sampling.problem(values):
        raise ModelFilesError(f"{path}: {problem}", code="M306")
    return values


def _tokenizer_path(deployment: Deployment, folder: Path, config: Path) -> str | None:
    """A directory, or the GGUF file that describes the model."""
    model = deployment.model
    if model.skip_tokenizer_init:
        return None
    if is_gguf(config) and model.tokenizer == "auto":
        if model.tokenizer_mode != "auto":
            raise ModelFilesError(
                f"{config}: the vocabulary in a GGUF file is read with `model.tokenizer_mode: auto` only; name a "
                "directory with another with `model.tokenizer`",
                code="M307",
            )
        return str(config)
    wanted = VOCABULARIES.get(model.tokenizer_mode, (TOKENIZER_JSON, TEKKEN_JSON, *OLDER_VOCABULARIES))
    if (name := tokenizer_source(deployment)) is not None:
        folder = locate(name, tokenizer_revision(deployment), hub_cache(deployment), *wanted)
    elif not any(os.path.lexists(folder / file) for file in wanted):
        raise ModelFilesError(
            f"{folder}: holds no {wanted[0]}; name a tokenizer with `model.tokenizer`, or serve token ids only "
            "with `model.skip_tokenizer_init: true`",
            code="M307",
        )
    path = folder / "tokenizer_config.json"
    named = read_json_if_any(path).get("auto_map")
    if named and (not isinstance(named, Mapping) or named.get("AutoTokenizer")):
        raise ModelFilesError(
            f"{path}: `auto_map` says that this tokenizer is code from its repository, which this "
            "build never runs, whatever `model.trust_remote_code` says; name another tokenizer with "
            "`model.tokenizer`: if the tokenizer.json alone is right, a directory that has only this file",
            code="M304",
        )
    return str(folder)


def _eos_ids(config_path: Path, config_json: ConfigJson, generation: Path, vocab_size: int) -> tuple[int, ...]:
    """End-of-sequence ids: generation_config.json's first, which chat models extend, then config.json's."""
    ids: dict[int, None] = {}  # ordered
    for file, value in (
        (generation, None if is_gguf(config_path) else read_json_if_any(generation).get("eos_token_id")),
        (config_path, config_json.get("eos_token_id")),
    ):
        for token in value if isinstance(value, list) else [value]:
            if token is None:
                continue
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                said = f"`eos_token_id` holds {shown(token)}; the vocabulary has {vocab_size} tokens"
                raise ModelFilesError(f"{file}: {said}", code="M306")
            ids[token] = None
    return tuple(ids)
