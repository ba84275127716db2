"""Checks of JSON that models and clients write: what a template can render, and what can be encoded.

`object_of` reads the arguments of a call. The other functions check values and texts that were read elsewhere:

    object_of('{"city": "Oslo"}')    -> {"city": "Oslo"}
    object_of('["Oslo"]')            -> None, as for an object nested more than MAX_DEPTH levels deep
"""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 64
SURROGATE = re.compile("[\ud800-\udfff]")
_CHUNK_CHARS = 1 << 20  # searched in one call


def object_of(text: str) -> dict[str, Any] | None:
    """The object of a JSON text; None if it is not an object, or one that cannot be rendered and encoded.

    Accepts what models write, such as NaN, duplicate keys, and line breaks within strings.
    """
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):  # not JSON, a number with thousands of digits, nested too deeply
        return None
    if not isinstance(value, dict) or is_too_deep(value):
        return None
    if "\\u" in text and has_surrogate(json.dumps(value, ensure_ascii=False)):
        return None
    return value


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects are nested more than MAX_DEPTH levels deep."""
    containers: list[Any] = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        level, containers = containers, []
        for container in level:
            values = container.values() if isinstance(container, dict) else container
            for inner in values:
                if isinstance(inner, (dict, list)):
                    containers.append(inner)
        if not containers:
            return False
    return True


def has_surrogate(text: str) -> bool:
    """Whether the text has half of a surrogate pair, which is not Unicode and cannot be encoded."""
    if text.isascii():
        return False
    starts = range(0, len(text), _CHUNK_CHARS)
    return any(SURROGATE.search(text, start, start + _CHUNK_CHARS) for start in starts)
