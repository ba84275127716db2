"""JSON of a model's files, which come from anywhere: decoded only if it is small and flat enough.

Each value takes up to a hundred bytes of memory where its text has two, so values are counted before they are decoded.
The depth is limited for the functions that walk through the values by recursion.
"""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import Any

MAX_VALUES = 4_000_000  # about 0.4 GB; the header of a checkpoint of 100 000 tensors has 0.7 million
MAX_DEPTH = 64
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def decode(content: bytes) -> Any:
    """The value. Raises ValueError, JSONDecodeError among them, whose message says what is wrong."""
    if content.count(b",") + content.count(b"[") + content.count(b"{") > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES} values")
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}") from None
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = list(chain.from_iterable(map(_children, level)))
        if not level:
            if _SURROGATE.search(content):
                _check_surrogates(value)
            return value
    raise ValueError(f"nested more than {MAX_DEPTH} levels deep")


def _check_surrogates(value: Any) -> None:
    """Raises ValueError for half of a pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise ValueError(f"{half} is half of a surrogate pair, which is not a character") from None


def _children(value: Any) -> list[Any]:
    """The containers in a container."""
    if isinstance(value, dict):
        return [item for item in value.values() if isinstance(item, dict | list)]
    return [item for item in value if isinstance(item, dict | list)] if isinstance(value, list) else []
