"""NumPy cache: torch's weight files as .npy files, written once next to the model, one per tensor.

npcache/index.json   the files that were copied, by size and time, and the tensors in order
npcache/00000.npy    the first tensor; bfloat16 as uint16, since NumPy has no bfloat16
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...config import ModelFilesError
from ...config.checkpoint.model_files import MAX_INDEX_BYTES
from ...config.checkpoint.stored import DTYPE_BYTES, StoredTensor
from ...input_file import read_file
from .weights import DTYPES, Checkpoint

_INDEX = "index.json"
_FORMAT_VERSION = 1
_OURS = re.compile(r"index\.json|\d{5,}\.npy")


def cached_tensors(model: Path, tensors: Mapping[str, StoredTensor], folder: Path) -> dict[str, StoredTensor]:
    """The same tensors in .npy files, which are written first unless they exist and the weight files are unchanged.

    Raises ModelFilesError if the folder cannot be written, or holds files that are not of such a cache.
    """
    sources = _sources(tensors)
    found = _read(folder, sources)
    if found is None:
        try:
            _write(model, tensors, folder, sources)
        except OSError as error:
            raise ModelFilesError(
                f"{folder}: the NumPy cache cannot be written: {error.strerror}; name another folder with "
                "`load.model_loader_extra_config: {folder: ...}`, or set `load.load_format: pt`",
                code="M302",
            ) from error
        found = _read(folder, sources)
    if found is None:
        raise ModelFilesError(f"{folder}: the NumPy cache changed while it was read", code="M303")
    return found


def _sources(tensors: Mapping[str, StoredTensor]) -> dict[str, list[int]]:
    files = sorted({tensor.file for tensor in tensors.values()})
    return {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}


def _read(folder: Path, sources: Mapping[str, list[int]]) -> dict[str, StoredTensor] | None:
    """The tensors of the cache; None if there is no cache, or if it was made of other files."""
    try:
        index = json.loads(read_file(folder / _INDEX, MAX_INDEX_BYTES))
        if index["format_version"] != _FORMAT_VERSION or index["sources"] != sources:
            return None
        return {
            entry["name"]: _tensor(folder / f"{number:05d}.npy", entry) for number, entry in enumerate(index["tensors"])
        }
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _tensor(file: Path, entry: dict[str, Any]) -> StoredTensor:
    """The tensor of one file. Raises ValueError if the file does not match the index."""
    dtype, shape, offset = entry["dtype"], tuple(entry["shape"]), entry["offset"]
    stored = StoredTensor(file, dtype, shape, offset)
    if dtype not in DTYPE_BYTES or file.stat().st_size != offset + stored.num_bytes:
        raise ValueError(f"{file} is not as it was written")
    return stored


def _check_folder(folder: Path) -> None:
    """Raises ModelFilesError unless the folder is missing, empty or such a cache: its content will be removed."""
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if names and not (_INDEX in names and all(_OURS.fullmatch(name) for name in names)):
        raise ModelFilesError(
            f"{folder}: not empty, and not a NumPy cache: it is not changed. `load.model_loader_extra_config: "
            "{folder: ...}` sets another folder for the cache",
            code="M302",
        )


def _write(model: Path, tensors: Mapping[str, StoredTensor], folder: Path, sources: Mapping[str, list[int]]) -> None:
    """Writes a temporary folder, then renames it, so that no reader sees an incomplete cache."""
    _check_folder(folder)
    checkpoint = Checkpoint(model, tensors)
    new = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    new.mkdir(parents=True)
    try:
        entries = [
            _write_tensor(checkpoint, name, stored, new / f"{number:05d}.npy")
            for number, (name, stored) in enumerate(tensors.items())
        ]
        index = {"format_version": _FORMAT_VERSION, "sources": sources, "tensors": entries}
        (new / _INDEX).write_text(json.dumps(index))
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _write_tensor(checkpoint: Checkpoint, name: str, stored: StoredTensor, file: Path) -> dict[str, Any]:
    """Writes the .npy file of one tensor. Returns its entry of the index."""
    if stored.dtype not in DTYPES:
        raise ModelFilesError(
            f"{stored.file}: tensor `{name}` has dtype {stored.dtype}; supported: {', '.join(DTYPES)}"
        )
    values = torch.empty(stored.shape, dtype=DTYPES[stored.dtype])
    checkpoint.read(name, values)
    array = values.view(torch.uint16).numpy() if stored.dtype == "BF16" else values.numpy()
    with file.open("wb") as stream:
        np.lib.format.write_array(stream, array, allow_pickle=False)
        offset = stream.tell() - stored.num_bytes
    return {"name": name, "dtype": stored.dtype, "shape": list(stored.shape), "offset": offset}
