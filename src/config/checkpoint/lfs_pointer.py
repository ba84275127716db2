"""Files of a few lines that Git LFS has in place of large ones, until `git lfs pull` fetches these."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ...input_file import open_file
from ..errors import ModelFilesError

_START = b"version https://git-lfs.github.com/spec/"


def refuse_lfs_pointer(path: Path) -> None:
    """Raises ModelFilesError if the file is only a pointer; other faults of it are reported where it is read."""
    start = b""
    with contextlib.suppress(OSError, ValueError), open_file(path) as stream:
        start = stream.read(len(_START))
    if start == _START:
        raise ModelFilesError(
            f"{path}: a pointer of Git LFS instead of the file: run `git lfs pull` in its folder, or download it again",
            code="M302",
        )
