"""Tensors of a checkpoint that a model does not use: layers that draft tokens, encoders of images and sound, heads."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

from .stored import StoredTensor

Part = Literal["draft layers", "encoders", "other heads"]
# Multi-token prediction as a separate module: Qwen3-Next, Nemotron-H, Ernie 4.5, MiMo, LongCat.
_DRAFTS = re.compile(r"(?:model\.)?mtp(?:_\w+)?\.")
_LAYER = re.compile(r"(?:(?:language_)?model\.){0,2}(?:layers|blk)\.(\d{1,9})\.")
# The projection of a layer that drafts, which DeepSeek-V3, GLM-4.5 and HunYuan 3 store after the last one. It joins the
# hidden state and the embedding of the next token.
_JOIN = ".eh_proj."


def layer_of(name: str) -> int | None:
    """The layer that a tensor belongs to, if it belongs to one."""
    match = _LAYER.match(name)
    return None if match is None else int(match[1])


def left_out(
    names: Collection[str], num_layers: int, encoders: tuple[str, ...], heads: tuple[str, ...] = ()
) -> dict[str, Part]:
    """Tensors that the model does not use, and what they are a part of.

    encoders, heads: beginnings of names. A layer after the last one is a draft layer only if it has the projection of
    one: otherwise the number of layers is wrong.
    """
    drafting = {layer_of(name) for name in names if _JOIN in name}
    found: dict[str, Part] = {}
    for name in names:
        layer = layer_of(name)
        if name.startswith(encoders):
            found[name] = "encoders"
        elif name.startswith(heads):
            found[name] = "other heads"
        elif _DRAFTS.match(name) or (layer is not None and layer >= num_layers and layer in drafting):
            found[name] = "draft layers"
    return found


def bytes_left_out(stored: Mapping[str, StoredTensor], found: Mapping[str, Part]) -> dict[Part, int]:
    """Bytes in the files, by part."""
    sizes: dict[Part, int] = {}
    for name, part in found.items():
        sizes[part] = sizes.get(part, 0) + stored[name].num_bytes
    return sizes
