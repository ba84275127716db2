"""Import paths as options write them: `package.module:Name`, or with a dot before the name."""

from __future__ import annotations

import importlib
import re
from typing import Any

_NAME = r"[^\W\d]\w*"
_PATH = re.compile(rf"({_NAME}(?:\.{_NAME})*)[.:]({_NAME})")


class ImportPathError(Exception):
    """Malformed, or what it names cannot be imported. The message begins with the path."""


def split_import_path(path: str) -> tuple[str, str] | None:
    """(module, name in it), or None if it is not an import path."""
    match = _PATH.fullmatch(path)
    return None if match is None else (match[1], match[2])


def import_object(path: str) -> Any:
    """Import the module and return the object of that name. This runs the module's code. Raises ImportPathError."""
    parts = split_import_path(path)
    if parts is None:
        raise ImportPathError(f"{path}: not an import path; write package.module:Name")
    module_name, name = parts
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # importing runs the module, which may raise anything
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            hint = "; Python searches the installed packages and the folders of PYTHONPATH"
        raise ImportPathError(f"{path}: {module_name} cannot be imported: {error_text(error)}{hint}") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise ImportPathError(f"{path}: {module_name} has no {name}") from None


def error_text(error: Exception) -> str:
    """Type and message of an exception raised by code that we do not own."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
