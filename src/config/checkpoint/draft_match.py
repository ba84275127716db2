"""The tensors of a network that drafts, in its own files or beside the layers of a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from ...model.drafts import JOIN, MASK_HIDDEN, TOKEN_OFFSETS, DraftSpec, draft_shapes
from ...model.families import FAMILIES
from ...model.mtp import MTP_FORMS
from ...model.tensors import FINAL_NORM
from ..errors import ModelFilesError
from .match import matched, renamed, split_experts, split_fused
from .packed import unpacked
from .stored import StoredTensor

_LAYERS, _LAYER, _NORM = "model.layers.", "model.layers.0.", f"{FINAL_NORM}."
_UNUSED = ("t2d", "embed_tokens.weight")  # the inverse of `d2t`, and a copy of the model's embedding
_OUTPUT = "lm_head.weight"
_COPIES = ("embed_tokens.weight", "shared_head.head.weight")  # of the model's, in a layer for drafts


def draft_tensors_of(
    folder: Path, stored: Mapping[str, StoredTensor], draft: DraftSpec, num_layers: int
) -> dict[str, StoredTensor]:
    """The tensors of a network that reads the model, under the names of model/drafts.py.

    Args:
        stored: of its files; for a layer of the model's checkpoint, of those.
        num_layers: of the model.

    Raises ModelFilesError, with names as the files have them, unless these have exactly the tensors, in their shapes.
    """
    stored = unpacked(stored, draft.spec.quantization, draft.spec.dtype)
    if draft.kind == "mtp":
        beginnings = _of_mtp(draft, num_layers)
        own = _own_of_mtp(stored, beginnings, draft.spec.architecture)
    else:
        unused = _UNUSED if draft.has_own_output else (*_UNUSED, _OUTPUT)
        own = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
        own = {name: tensor for name, tensor in own.items() if name not in unused}
        beginnings = _of_trained(own)
    if not own:
        raise ModelFilesError(f"{folder}: no tensors of a layer for drafts in its weight files", code="M302")
    names = {_in_files(name, beginnings): name for name in draft_shapes(draft)}
    shapes = {name: draft_shapes(draft)[known] for name, known in names.items()}
    for name in (TOKEN_OFFSETS, MASK_HIDDEN):  # the identity; what is drafted one after the other has no masks
        if name not in shapes:
            own.pop(name, None)
    found = matched(folder, split_fused(split_experts(own, "stacked"), shapes), shapes, is_tied=False)
    return {names[name]: tensor for name, tensor in found.items()}


def has_join_bias(stored: Collection[str]) -> bool:
    """Whether the files of EAGLE-1 have a bias of its first product: some config.json do not say it."""
    return any(name in stored for name in ("fc.bias", "model.fc.bias", "fusion_fc.bias"))


def is_eagle(stored: Collection[str]) -> bool:
    """Whether files beside the config.json of a language model are layers of EAGLE-1, whose authors write that."""
    return any(name in stored for name in ("fc.weight", "model.fc.weight", "fusion_fc.weight"))


def _of_trained(own: Collection[str]) -> dict[str, str]:
    """How names in the files of EAGLE begin, by how the engine's own begin."""
    if any(name.startswith("midlayer.") for name in own):
        return {_LAYER: "midlayer.", _LAYERS: "layers.", _NORM: "norm."}
    if any(name.startswith("fusion_fc.") for name in own):  # the library `speculators`
        return {_LAYER: "transformer.", f"{JOIN}.": "fusion_fc."}
    return {_LAYERS: "layers.", _NORM: "norm."}


def _in_files(name: str, beginnings: Mapping[str, str]) -> str:
    """beginnings: of names of the engine, and what they are in the files."""
    known = next((each for each in beginnings if name.startswith(each)), "")
    return beginnings.get(known, "") + name.removeprefix(known)


def _of_mtp(draft: DraftSpec, num_layers: int) -> dict[str, str]:
    return {new: old.format(num_layers) for old, new in MTP_FORMS[draft.spec.architecture].names.items()}


def _own_of_mtp(
    stored: Mapping[str, StoredTensor], beginnings: Mapping[str, str], architecture: str
) -> dict[str, StoredTensor]:
    renames = FAMILIES[architecture].renames
    found: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        own = name.removeprefix("model.language_model.") if "mtp." in name else name.replace("language_model.", "", 1)
        if own.startswith(tuple(beginnings.values())) and not own.endswith(_COPIES):
            found[renamed(own, renames)] = tensor
    return found
