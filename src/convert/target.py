"""What a conversion writes, a file or a folder: there completely or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..config import ModelFiles, ModelFilesError
from ..config.checkpoint.model_files import is_like
from ..config.checkpoint.settings import SHARD_PATTERN
from ..config.fetch import MODEL_FILES
from ..temporary_folder import temporary_folder

_OTHER_FILES = (*MODEL_FILES, "*.py")  # copied as they are
_SPARE_BYTES = 64 << 20  # of the disk: for headers, tokenizer files and the file system's own
_PREFIX = ".stoker-quantize-"  # of folders that are removed if their process was killed: no user's


def target_problem(target: Path, *, may_replace: bool) -> str:
    """Why a sharded state may not be written there; empty if it may. may_replace: another sharded state."""
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return ""
    if not target.is_dir() or not os.path.lexists(target / SHARD_PATTERN.format(rank=0, part=0)):
        return f"{target}: exists, and is not a sharded state; name a folder that does not exist, or an empty one"
    return "" if may_replace else f"{target}: exists; --force replaces the sharded state in it"


def check_generates(files: ModelFiles) -> None:
    """Raises ModelFilesError for a model that generates no text: files of its heads are not written."""
    if not files.spec.generates:
        raise ModelFilesError(
            f"{files.model_path}: {files.spec.architecture} makes vectors or scores here; only models that generate "
            "text are written in another format",
            code="M304",
        )


def check_space(target: Path, num_bytes: int) -> None:
    """Raises OSError unless there is space for `num_bytes`."""
    place = next(each for each in target.absolute().parents if each.exists())
    needed, free = num_bytes + _SPARE_BYTES, shutil.disk_usage(place).free
    if free < needed:
        raise OSError(f"{place}: {needed} bytes are needed for {target.name}, {free} are free")


@contextmanager
def written_whole(target: Path, num_bytes: int, *, replaces: bool = False) -> Iterator[Path]:
    """A path on the same disk, for what becomes `target` at the end of the block.

    target: does not exist, or is an empty folder if a folder will be written; with `replaces` also a sharded state.
    Raises OSError unless there is space for `num_bytes`.
    """
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    check_space(target, num_bytes)
    with temporary_folder(_PREFIX, str(target.parent)) as temporary:
        made = temporary / target.name
        yield made
        if replaces and target.is_dir() and not target_problem(target, may_replace=True):
            os.rename(target, temporary / f"{target.name}.before")
        os.rename(made, target)


@contextmanager
def new_checkpoint(
    target: Path, source: Path, num_bytes: int, *, without: tuple[str, ...], replaces: bool = False
) -> Iterator[Path]:
    """A folder for weights, with the configuration and the tokenizer of `source`, except the files `without`."""
    with written_whole(target, num_bytes, replaces=replaces) as made:
        made.mkdir()
        for name in os.listdir(source):
            if is_like(name, _OTHER_FILES) and name not in without and (source / name).is_file():
                shutil.copyfile(source / name, made / name)
        yield made
