"""Sizes of a checkpoint from the headers of its safetensors files, in any format; no weights are read.

Tolerant where checkpoint/model_files.py is strict: quantised tensors count by their bytes, missing files by the index.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..checkpoint.model_files import INDEX, read_json
from ..resolve.resolved import DTYPE_BYTES, Record

_FLOATS = {"F64", "F32", "BF16", "F16"}  # converted to model.dtype when they are loaded; other formats keep their bytes
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library


class Stored(Record):
    """Elements (`numbers`) and bytes by dtype, as safetensors names it; a tied output layer is not counted."""

    num_files: int
    num_tensors: int
    numbers: dict[str, int]
    num_bytes: dict[str, int]
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


def read_stored(folder: Path, is_tied: bool) -> Stored | None:
    """The sum over all headers; None if there are no weight files."""
    problems: list[str] = []
    names, total = _names(folder)
    numbers: dict[str, int] = {}
    sizes: dict[str, int] = {}
    num_tensors = num_files = tied_bytes = 0
    for name in names:
        try:
            header = read_header(folder / name)
        except (OSError, ValueError) as error:
            problems.append(f"{name}: {error.strerror if isinstance(error, OSError) else error}")
            continue
        num_files += 1
        for tensor, entry in header.items():
            try:
                dtype, count, size = _entry(entry)
            except (TypeError, KeyError, ValueError):
                problems.append(f"{name}: the entry of `{tensor}` is invalid")
                continue
            if is_tied and tensor.endswith("lm_head.weight"):
                tied_bytes += size
                continue
            num_tensors += 1
            numbers[dtype] = numbers.get(dtype, 0) + count
            sizes[dtype] = sizes.get(dtype, 0) + size
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


def read_header(path: Path) -> dict[str, Any]:
    """Tensor name -> its entry. OSError if it cannot be read, ValueError if it is not a safetensors file."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= _MAX_HEADER_BYTES:
            raise ValueError("no safetensors file")
        try:
            header = json.loads(stream.read(length))
        except (ValueError, RecursionError):
            raise ValueError("not a safetensors file, or truncated") from None
    if not isinstance(header, dict):
        raise ValueError("no safetensors file")
    header.pop("__metadata__", None)
    return header


def _entry(entry: Any) -> tuple[str, int, int]:
    start, end = entry["data_offsets"]
    count = 1
    for width in entry["shape"]:
        count *= width
    if not (isinstance(count, int) and count >= 0 and isinstance(start, int) and isinstance(end, int) and end >= start):
        raise ValueError
    return str(entry["dtype"]), count, end - start


def _names(folder: Path) -> tuple[list[str], int]:
    """Weight files, and the bytes of all tensors if an index gives them."""
    if os.path.isfile(folder / INDEX):
        index = read_json(folder / INDEX)
        table, metadata = index.get("weight_map"), index.get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else 0
        if isinstance(table, dict):
            names = {str(name) for name in table.values()}
            return sorted(name for name in names if Path(name).name == name), int(total) if total else 0
    if os.path.isfile(folder / "model.safetensors"):
        return ["model.safetensors"], 0
    return sorted(path.name for path in folder.glob("*.safetensors")), 0
