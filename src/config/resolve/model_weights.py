"""The headers of the model's weight files: its tensors, and the formats and codes in which they are stored."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...model.sizes import fused_name
from ...model.spec import ModelSpec
from ...model.tensors import EMBEDDING, OUTPUT, model_tensors
from ...model.wrappers import is_of_encoders, of_language_model
from ..checkpoint.group_layouts import group_layout, is_of_bfloat16, keeps_expert
from ..checkpoint.layout import WeightFiles, read_gguf_files, read_weight_files
from ..checkpoint.left_out import Part, bytes_left_out, layer_of, left_out
from ..checkpoint.match import tensors_of, unused_parts
from ..checkpoint.pooling_files import head_files
from ..checkpoint.settings import settings_problem
from ..checkpoint.stored import FLOAT_DTYPES, StoredTensor
from ..errors import ModelFilesError
from .stored_as import OwnCodes, StoredAs

if TYPE_CHECKING:
    from ..deployment import Deployment


def read_weights(path: Path, spec: ModelSpec, folder: Path, deployment: Deployment, *, is_native: bool) -> WeightFiles:
    """The files, which have the model's tensors and no others.

    is_native: otherwise the names of the tensors are known when transformers has built the model.
    """
    load = deployment.load
    settings = load.model_loader_extra_config
    if settings_problem(load.load_format, settings):
        settings = {}  # reported by a rule
    load_format = load.load_format
    if spec.weight_names == "gguf":
        return _used(folder, read_gguf_files(path), spec)
    if spec.weight_names == "mistral":
        load_format = "mistral"
    elif load_format == "mistral" or load_format == "hf":
        load_format = "auto"  # the first is reported by a rule, the second is read as auto
    weights = read_weight_files(
        folder, load_format, load.ignore_patterns, settings, load.pt_load_map_location, head_files(spec)
    )
    if not is_native:
        encoders: dict[str, Part] = {name: "encoders" for name in weights.tensors if is_of_encoders(name)}
        sizes = bytes_left_out(weights.tensors, encoders)
        return replace(weights, tensors=of_language_model(weights.tensors), left_out=sizes)
    _check_layers(path, spec, weights.tensors)
    return _used(folder, weights, spec)


def _used(folder: Path, weights: WeightFiles, spec: ModelSpec) -> WeightFiles:
    """The files with only the model's tensors."""
    sizes = bytes_left_out(weights.tensors, unused_parts(weights.tensors, spec))
    return replace(weights, tensors=tensors_of(folder, weights.tensors, spec), left_out=sizes)


def _check_layers(path: Path, spec: ModelSpec, tensors: Collection[str]) -> None:
    """Raise one sentence, instead of a list of tensors, if the number of layers differs."""
    unused = left_out(tensors, spec.num_layers, ())
    layers = [layer for name in tensors if name not in unused and (layer := layer_of(name)) is not None]
    stored = 1 + max(layers, default=-1)
    if stored and stored != spec.num_layers:
        key = "n_layers" if spec.weight_names == "mistral" else "num_hidden_layers"
        raise ModelFilesError(
            f"{path}: `{key}` is {spec.num_layers}, but its weight files have {stored} layers", code="M306"
        )


def stored_as_of(weights: WeightFiles) -> tuple[StoredAs, ...]:
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


def own_codes(weights: WeightFiles, spec: ModelSpec) -> tuple[OwnCodes, ...]:
    """Codes of linear layers all of whose parts have codes, of embeddings, and of experts."""
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


def most_common_dtype(weights: WeightFiles) -> str:
    """Dtype of most parameters; bfloat16 if they are quantised."""
    counts = weights.count()
    return FLOAT_DTYPES.get(max(counts, key=lambda dtype: counts[dtype]), "bfloat16")
