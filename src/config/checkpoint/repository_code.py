"""Python code in a model's repository, which runs only if `model.trust_remote_code` allows it: what it is, exactly."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...input_file import FileTooLarge, read_file
from ...model.record import Record
from ..errors import ModelFilesError

MAX_FILES, MAX_BYTES = 64, 4 << 20
PATTERN = "*.py"
COMMIT = re.compile(r"[0-9a-f]{40}")
_REFERENCE = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*")


class CodeFile(Record):
    name: str
    sha256: str


class RepositoryCode(Record):
    """The classes that config.json names as `module.Class`, and every file that they can import."""

    folder: str
    config_class: str
    model_class: str
    files: tuple[CodeFile, ...]


def read_code(path: Path, folder: Path, auto_map: Any) -> RepositoryCode:
    """path: of config.json, for messages. Raises ModelFilesError for code that this build does not load."""
    if not isinstance(auto_map, Mapping):
        raise ModelFilesError(f"{path}: `auto_map` must be an object", code="M306")
    named = {key: auto_map.get(key) for key in ("AutoConfig", "AutoModelForCausalLM")}
    for key, reference in named.items():
        if not isinstance(reference, str) or not _REFERENCE.fullmatch(reference):
            raise ModelFilesError(
                f"{path}: `auto_map` must name `{key}` as `module.Class` of the model's own repository; it has "
                f"{reference!r:.80}",
                code="M304",
            )
    return RepositoryCode(
        folder=str(folder),
        config_class=str(named["AutoConfig"]),
        model_class=str(named["AutoModelForCausalLM"]),
        files=code_files(folder),
    )


def code_files(folder: Path) -> tuple[CodeFile, ...]:
    """The Python files of a folder, by name. Raises ModelFilesError for one that is no plain file, or too large."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".py"))
    if not names or len(names) > MAX_FILES:
        raise ModelFilesError(f"{folder}: has {len(names)} Python files; allowed: 1 to {MAX_FILES}", code="M304")
    found = []
    for name in names:
        try:
            content = read_file(folder / name, MAX_BYTES)
        except FileTooLarge as error:
            raise ModelFilesError(f"{folder / name}: {error.strerror}", code="M303") from error
        except OSError as error:
            raise ModelFilesError.unreadable(folder / name, error) from error
        found.append(CodeFile(name=name, sha256=hashlib.sha256(content).hexdigest()))
    return tuple(found)
