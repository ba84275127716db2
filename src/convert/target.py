"""What a conversion writes, a file or a folder: there completely or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..config.checkpoint.model_files import is_like
from ..config.fetch import MODEL_FILES
from ..temporary_folder import temporary_folder

_OTHER_FILES = (*MODEL_FILES, "*.py")  # copied as they are
_SPARE_BYTES = 64 << 20  # of the disk: for headers, tokenizer files and the file system's own
_PREFIX = ".stoker-quantize-"  # of folders that are removed if their process was killed: no user's


@contextmanager
def written_whole(target: Path, num_bytes: int) -> Iterator[Path]:
    """A path on the same disk, for what becomes `target` at the end of the block.

    target: does not exist, or is an empty folder if a folder will be written.
    Raises OSError unless there is space for `num_bytes`.
    """
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    needed, free = num_bytes + _SPARE_BYTES, shutil.disk_usage(target.parent).free
    if free < needed:
        raise OSError(f"{target.parent}: {needed} bytes are needed for {target.name}, {free} are free")
    with temporary_folder(_PREFIX, str(target.parent)) as temporary:
        made = temporary / target.name
        yield made
        os.rename(made, target)


@contextmanager
def new_checkpoint(target: Path, source: Path, num_bytes: int, *, without: tuple[str, ...]) -> Iterator[Path]:
    """A folder for weights, with the configuration and the tokenizer of `source`, except the files `without`."""
    with written_whole(target, num_bytes) as made:
        made.mkdir()
        for name in os.listdir(source):
            if is_like(name, _OTHER_FILES) and name not in without and (source / name).is_file():
                shutil.copyfile(source / name, made / name)
        yield made
