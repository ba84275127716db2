"""The files of all clients, on disk: one folder for each owner, in it a data file and a record for each file.

A record is written after its data, and replaced as a whole: a process that ends at any moment leaves complete files,
and temporary ones, which are removed later. Ids begin with the time, so that they are in the order of creation.
Does not know what is in a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..protocol.errors import ApiError
from ..protocol.json import dump

MAX_FILES = 10_000  # of one owner
NAME_LIMIT = 255  # characters of a file's name
_FILE_ID = re.compile(r"file-[0-9a-f]{32}")
_OWNER = re.compile(r"open|[0-9a-f]{64}")
_OPEN = "open"  # folder of a server without keys
_DATA, _RECORD, _TEMPORARY = ".data", ".json", ".tmp"
_PRIVATE = 0o600
_BUFFER_BYTES = 1 << 18


def new_id(prefix: str) -> str:
    return f"{prefix}{time.time_ns():016x}{secrets.token_hex(8)}"


def not_found(what: str, name: str) -> ApiError:
    return ApiError(404, f"there is no {what} {name[:100]!r}", code="not_found", param=f"{what}_id")


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file as a whole."""
    temporary = path.with_name(f"{path.name}{secrets.token_hex(4)}{_TEMPORARY}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE), "wb") as file:
        file.write(dump(dict(content)))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_record(path: Path) -> dict[str, Any] | None:
    """Read a record; None if there is no such file."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return found


def newest_first(folder: Path, ids: re.Pattern[str]) -> list[str]:
    """The ids of all records in a folder."""
    with contextlib.suppress(FileNotFoundError):
        names = (entry.name.removesuffix(_RECORD) for entry in os.scandir(folder) if entry.name.endswith(_RECORD))
        return sorted((name for name in names if ids.fullmatch(name)), reverse=True)
    return []


@dataclass(slots=True)
class Writing:
    """A file that is being written. Its data exist for others when `Files.add` has returned."""

    file: BinaryIO
    path: Path
    size: int = 0

    def write(self, data: bytes) -> None:
        self.file.write(data)
        self.size += len(data)


class Files:
    """The files of one owner."""

    def __init__(self, root: Path, owner: str, clock: Callable[[], float] = time.time) -> None:
        """owner: "" without keys."""
        assert _OWNER.fullmatch(owner or _OPEN)
        self.folder = root / (owner or _OPEN) / "files"
        self._clock = clock

    @contextlib.contextmanager
    def writing(self) -> Iterator[Writing]:
        """A new file; removed at the end of the block unless it was added. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.folder / f"{new_id('upload-')}{_TEMPORARY}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, _PRIVATE), "wb", buffering=_BUFFER_BYTES) as file:
            try:
                yield Writing(file, path)
            finally:
                path.unlink(missing_ok=True)

    def add(
        self, writing: Writing, name: str, purpose: str, *, expires_at: int | None, file_id: str | None = None
    ) -> dict[str, Any]:
        """Returns the object of the API. file_id: of a file that may exist already, and is replaced then."""
        file_id = file_id or new_id("file-")
        writing.file.flush()
        os.fsync(writing.file.fileno())
        os.replace(writing.path, self.folder / f"{file_id}{_DATA}")
        record = {
            "id": file_id,
            "object": "file",
            "bytes": writing.size,
            "created_at": int(self._clock()),
            "expires_at": expires_at,
            "filename": name[:NAME_LIMIT],
            "purpose": purpose,
            "status": "processed",
            "status_details": None,
        }
        write_record(self.folder / f"{file_id}{_RECORD}", record)
        return record

    def get(self, file_id: str) -> dict[str, Any]:
        """Raises ApiError 404."""
        record = read_record(self.folder / f"{file_id}{_RECORD}") if _FILE_ID.fullmatch(file_id) else None
        if record is None or self._is_expired(record):
            raise not_found("file", file_id)
        return record

    def path(self, file_id: str) -> Path:
        """Path of the data of a file. Raises ApiError 404."""
        self.get(file_id)
        return self.folder / f"{file_id}{_DATA}"

    def ids(self) -> list[str]:
        """The newest first."""
        return newest_first(self.folder, _FILE_ID)

    def num_bytes(self) -> int:
        """Bytes of the data of all files, including files that are being written."""
        total = 0
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.folder):
                with contextlib.suppress(FileNotFoundError):
                    total += 0 if entry.name.endswith(_RECORD) else entry.stat().st_size
        return total

    def delete(self, file_id: str) -> None:
        """The record first: data without a record are removed by `clean`."""
        (self.folder / f"{file_id}{_RECORD}").unlink(missing_ok=True)
        (self.folder / f"{file_id}{_DATA}").unlink(missing_ok=True)

    def clean(self, in_use: Callable[[str], bool], *, temporary_age_s: float = 3600) -> None:
        """Remove expired files, data without a record, and temporary files of an earlier time."""
        for file_id in self.ids():
            record = read_record(self.folder / f"{file_id}{_RECORD}")
            if record is not None and self._is_expired(record) and not in_use(file_id):
                self.delete(file_id)
        known = set(self.ids())
        for entry in os.scandir(self.folder) if self.folder.exists() else ():
            is_stray = entry.name.endswith(_TEMPORARY) or (
                entry.name.endswith(_DATA) and entry.name.removesuffix(_DATA) not in known
            )
            with contextlib.suppress(FileNotFoundError):
                if is_stray and self._clock() - entry.stat().st_mtime > temporary_age_s:
                    os.unlink(entry.path)

    def _is_expired(self, record: Mapping[str, Any]) -> bool:
        return record["expires_at"] is not None and self._clock() >= record["expires_at"]


def owners(root: Path) -> list[str]:
    """Owners of all files."""
    with contextlib.suppress(FileNotFoundError):
        names = [entry.name for entry in os.scandir(root) if entry.is_dir() and _OWNER.fullmatch(entry.name)]
        return ["" if name == _OPEN else name for name in names]
    return []
