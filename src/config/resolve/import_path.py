"""Import paths of classes as options name them: `package.module:Class`, or with a dot before the class."""

from __future__ import annotations

import re

_NAME = r"[^\W\d]\w*"
_PATH = re.compile(rf"({_NAME}(?:\.{_NAME})*)[.:]({_NAME})")


def split_import_path(path: str) -> tuple[str, str] | None:
    """(module, name in it), or None if it is no import path."""
    match = _PATH.fullmatch(path)
    return None if match is None else (match[1], match[2])
