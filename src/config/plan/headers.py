"""Sizes of a checkpoint from the headers of its safetensors files, in any format; no weights are read.

Tolerant where checkpoint/model_files.py is strict: quantised tensors count by their bytes, missing files by the index.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from pydantic import Field

from ...model.record import Record
from ...model.sizes import DTYPE_BYTES
from ..checkpoint.layout import INDEXES, WHOLE, Kind, listed, read_gguf_files
from ..checkpoint.model_files import MAX_INDEX_BYTES, is_plain_name, read_json
from ..checkpoint.safetensors import read_entries
from ..checkpoint.stored import BLOCKS
from ..errors import ModelFilesError

_FLOATS = {
    "F64",
    "F32",
    "BF16",
    "F16",
    *BLOCKS,
}  # converted to model.dtype when they are loaded; other formats keep their bytes
_OF_LAYER = re.compile(r"^blk\.\d+\.")
_MAX_TOTAL_BYTES = 2**60


class Stored(Record):
    """Elements (`numbers`) and bytes by dtype, as safetensors names it; a tied output layer is not counted."""

    num_files: int
    num_tensors: int
    numbers: dict[str, int]
    num_bytes: dict[str, int]
    # of a GGUF file: part of a layer, or tensor outside -> dtype -> number of tensors
    parts: dict[str, dict[str, int]] = Field(default_factory=dict)
    missing_bytes: int = 0  # of missing files, from the total size in the index
    problems: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(self.num_bytes.values()) + self.missing_bytes

    def bytes_in(self, dtype: str) -> int:
        """Bytes of all tensors after unquantised ones are converted to `dtype`."""
        floats = sum(count for name, count in self.numbers.items() if name in _FLOATS)
        rest = sum(size for name, size in self.num_bytes.items() if name not in _FLOATS)
        # missing files are assumed to have the same mix of formats
        known = sum(self.num_bytes.values())
        scale = 1 + self.missing_bytes / known if known else 1
        return round((floats * DTYPE_BYTES[dtype] + rest) * scale) if known else self.missing_bytes


def read_stored(folder: Path, is_tied: bool, kind: Kind = "safetensors") -> Stored | None:
    """The sum over all headers; None if there are no weight files of this kind."""
    problems: list[str] = []
    names, total = _names(folder, kind)
    numbers: dict[str, int] = {}
    sizes: dict[str, int] = {}
    num_tensors = num_files = tied_bytes = 0
    for name in names:
        try:
            entries = read_entries(folder / name)
        except ModelFilesError as error:
            problems.append(str(error).removeprefix(f"{folder}/"))
            continue
        num_files += 1
        for entry in entries:
            size = entry.end - entry.start
            if is_tied and entry.name.endswith("lm_head.weight"):
                tied_bytes += size
                continue
            num_tensors += 1
            numbers[entry.dtype] = numbers.get(entry.dtype, 0) + math.prod(entry.shape)
            sizes[entry.dtype] = sizes.get(entry.dtype, 0) + size
    missing = max(0, total - sum(sizes.values()) - tied_bytes) if len(names) > num_files else 0
    if not sizes and not missing:
        return None
    return Stored(
        num_files=len(names),
        num_tensors=num_tensors,
        numbers=numbers,
        num_bytes=sizes,
        missing_bytes=missing,
        problems=tuple(problems),
    )


def read_stored_gguf(path: Path) -> Stored:
    """The sum over the headers of a GGUF file and the other parts of its model. Raises ModelFilesError."""
    files = read_gguf_files(path)
    sizes: dict[str, int] = {}
    matrices: dict[str, dict[str, int]] = {}
    for name, tensor in files.tensors.items():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.num_bytes
        if len(tensor.shape) > 1:
            dtypes = matrices.setdefault(_OF_LAYER.sub("", name).removesuffix(".weight"), {})
            dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + 1
    return Stored(
        num_files=len(files.names),
        num_tensors=len(files.tensors),
        numbers=files.count(),
        num_bytes=sizes,
        parts=matrices,
    )


def _names(folder: Path, kind: Kind) -> tuple[list[str], int]:
    """Weight files, and the bytes of all tensors if an index gives them."""
    if os.path.lexists(folder / INDEXES[kind]):
        index = read_json(folder / INDEXES[kind], MAX_INDEX_BYTES)
        table, metadata = index.get("weight_map"), index.get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else 0
        if isinstance(table, dict):
            names = {str(name) for name in table.values()}
            if not isinstance(total, int) or not 0 < total < _MAX_TOTAL_BYTES:
                total = 0
            return sorted(name for name in names if is_plain_name(name)), total
    if os.path.lexists(folder / WHOLE[kind]):
        return [WHOLE[kind]], 0
    return list(listed(folder, kind)), 0
