"""The part file: results of an unfinished run. It is kept if the run ends early, and a later run continues it.

It has complete lines only. The id of a result contains the number of its input line, so a later run can skip it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

from ...input_file import open_file
from .lines import facts_of
from .usage import Usage


class PartFileInUse(Exception):
    """Another run is writing this file."""


@dataclass(slots=True)
class Counts:
    """Number of lines by result."""

    answered: int = 0
    refused: int = 0  # by the API: a status other than 200
    malformed: int = 0  # not a request
    usage: Usage = field(default_factory=Usage)

    @property
    def total(self) -> int:
        return self.answered + self.refused + self.malformed

    def add(self, status: int | None, answer: Mapping[str, Any] | None = None) -> None:
        """status: None for a line that is not a request. answer: the body of its response."""
        if status is None:
            self.malformed += 1
        elif status == 200:
            self.answered += 1
            self.usage.add(answer or {})
        else:
            self.refused += 1


class PartFile:
    def __init__(self, path: Path, *, mode: int = 0o666) -> None:
        """mode: of a new file, before the umask. Raises OSError, PartFileInUse."""
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW  # a link could lead to any file
        self._file = os.open(path, flags, mode)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise PartFileInUse(f"{path} is being written by another run") from None
        self.done: set[int] = set()  # numbers of input lines
        self.custom_ids: set[str] = set()
        self.counts = Counts()
        self._size = 0
        try:
            self._read()
        except OSError:
            os.close(self._file)
            raise

    def _read(self) -> None:
        """Read the results of an earlier run. An incomplete last line is removed."""
        with BufferedReader(open_file(self.path)) as file:
            for line in file:
                try:
                    result = json.loads(line)
                    number, status = facts_of(result)
                except (ValueError, KeyError, TypeError, RecursionError):
                    break
                if not line.endswith(b"\n"):
                    break
                self.done.add(number)
                if status is not None:
                    self.custom_ids.add(result["custom_id"])
                self.counts.add(status, result["response"].get("body") if status is not None else None)
                self._size += len(line)
        os.ftruncate(self._file, self._size)

    def append(self, line: bytes) -> None:
        """Write the whole line, or on OSError (such as a full disk) nothing."""
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)

    def close(self, *, target: Path | None = None) -> None:
        """Sync to disk; with `target`, rename to it atomically. An empty file is removed. Can be called twice.

        A target that exists and is empty gets the content instead: a program that has made it may have it open.
        """
        if self._file < 0:
            return
        try:
            if self._size or target is not None:
                os.fsync(self._file)
            else:
                self.path.unlink(missing_ok=True)
            if target is not None:
                if _is_empty_file(target):
                    _copy(self.path, target)
                    self.path.unlink()
                else:
                    os.replace(self.path, target)
        finally:
            os.close(self._file)
            self._file = -1


def _is_empty_file(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        return stat.S_ISREG(found.st_mode) and found.st_size == 0
    return False


def _copy(source: Path, target: Path) -> None:
    """Interrupted, it leaves the source and a part of the content."""
    with source.open("rb") as results, target.open("r+b") as output:
        shutil.copyfileobj(results, output)
        output.flush()
        os.fsync(output.fileno())
