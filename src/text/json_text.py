"""JSON texts that models and clients write: which of them a template can render, and which text can be encoded."""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 64
SURROGATE = re.compile("[\ud800-\udfff]")
_CHUNK_CHARS = 1 << 20  # searched in one call


def object_of(text: str) -> dict[str, Any] | None:
    """The object of a JSON text; None if it is none, or one that cannot be rendered and encoded.

    Accepts what models write, such as NaN, duplicate keys, and line breaks within strings.
    """
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):  # not JSON, a number with thousands of digits, nested too deeply
        return None
    if not isinstance(value, dict) or is_too_deep(value):
        return None
    return None if "\\u" in text and has_surrogate(json.dumps(value, ensure_ascii=False)) else value


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects are nested more than MAX_DEPTH levels deep."""
    level: list[Any] = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return False
    return bool(level)


def has_surrogate(text: str) -> bool:
    """Whether the text has half of a surrogate pair, which is not Unicode and cannot be encoded."""
    if text.isascii():
        return False
    return any(SURROGATE.search(text, start, start + _CHUNK_CHARS) for start in range(0, len(text), _CHUNK_CHARS))
