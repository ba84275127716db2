"""The tensors of a network that drafts, in its own files or beside the layers of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...model.drafts import JOIN, MTP_NAMES, TOKEN_OFFSETS, DraftSpec, draft_shapes
from ...model.tensors import FINAL_NORM
from ..errors import ModelFilesError
from .match import matched, split_experts, split_fused
from .packed import unpacked
from .stored import StoredTensor

_LAYER = "model.layers.0."
# What checkpoints of EAGLE-3 call its parts, with or without `model.` before it
_EAGLE3_NAMES = {"midlayer.": _LAYER, "layers.0.": _LAYER, "fc.": f"{JOIN}.", "norm.": f"{FINAL_NORM}."}
_UNUSED = ("t2d", "embed_tokens.weight")  # the inverse of `d2t`, and a copy of the model's embedding
_COPIES = ("embed_tokens.weight", "shared_head.head.weight")  # of the model's, in a layer for drafts


def draft_tensors_of(
    folder: Path, stored: Mapping[str, StoredTensor], draft: DraftSpec, num_layers: int
) -> dict[str, StoredTensor]:
    """The tensors of a network that reads the model, under the names of model/drafts.py.

    Args:
        stored: of its files; for a layer of the model's checkpoint, of those.
        num_layers: of the model.

    Raises ModelFilesError unless the files have exactly these, in the right shapes.
    """
    stored = unpacked(stored, draft.spec.quantization, draft.spec.dtype)
    named = _of_mtp(stored, draft, num_layers) if draft.kind == "mtp" else _of_eagle3(stored)
    if not named:
        raise ModelFilesError(f"{folder}: no tensors of a layer for drafts in its weight files", code="M302")
    shapes = draft_shapes(draft)
    named = split_fused(split_experts(named, "stacked"), shapes)
    if TOKEN_OFFSETS not in shapes:  # the identity
        named.pop(TOKEN_OFFSETS, None)
    return matched(folder, named, shapes, is_tied=False)


def _of_mtp(stored: Mapping[str, StoredTensor], draft: DraftSpec, num_layers: int) -> dict[str, StoredTensor]:
    names = MTP_NAMES[draft.spec.architecture]
    beginnings = {old.format(num_layers): new for old, new in names.renames.items()}
    beginnings[names.layer.format(num_layers)] = _LAYER
    found: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        own = name.removeprefix("model.language_model.") if "mtp" in name else name.replace("language_model.", "", 1)
        beginning = next((old for old in beginnings if own.startswith(old)), None)
        if beginning is not None and not own.endswith(_COPIES):
            found[beginnings[beginning] + own.removeprefix(beginning)] = tensor
    return {name.replace(".mlp.shared_expert.", ".mlp.shared_experts."): tensor for name, tensor in found.items()}


def _of_eagle3(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        own = name.removeprefix("model.")
        if own in _UNUSED:
            continue
        if own == "d2t":
            found[TOKEN_OFFSETS] = tensor
            continue
        beginning = next((old for old in _EAGLE3_NAMES if own.startswith(old)), None)
        found[own if beginning is None else _EAGLE3_NAMES[beginning] + own.removeprefix(beginning)] = tensor
    return found
