"""`per_layer_config` of config.json: what differs in some layers, by the number of the layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from .config_json import ModelConfigError


def listed_changes(listed: Any, layers: Collection[int], known: Collection[str], which: str) -> Mapping[str, Any]:
    """What `per_layer_config` changes, which must be the same in all of these layers, and in no other.

    known: the keys that may differ. which: says in the message which layers these are.
    """
    if isinstance(listed, Mapping) and len(listed) == len(layers):
        # transformers pads the numbers with zeros, so that they are sorted: '02', '11'.
        numbers = {int(key) for key in listed if str(key).isdecimal()}
        changes = list(listed.values())
        is_same = all(isinstance(each, Mapping) and each == changes[0] for each in changes)
        if numbers == set(layers) and changes and is_same and set(changes[0]) <= set(known):
            return changes[0]  # type: ignore[no-any-return]
    names = sorted(known)
    shown = f"{', '.join(names[:-1])} and {names[-1]}"
    raise ModelConfigError(f"`per_layer_config` is supported for {shown} of all layers {which}", "M304")
