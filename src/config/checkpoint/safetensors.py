"""Headers of safetensors files: an 8-byte length, JSON with name -> dtype, shape, offsets, then the bytes.

A header is believed only if its tensors cover the rest of the file exactly, without gaps or overlaps.
"""

from __future__ import annotations

import math
import os
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from ...input_file import open_file
from ..errors import ModelFilesError
from .bounded_json import decode
from .lfs_pointer import refuse_lfs_pointer
from .stored import DTYPE_BYTES, StoredTensor

_MAX_HEADER_BYTES = 100_000_000  # as the safetensors library
_MAX_DIMENSIONS = 8
_MAX_SIZE = 2**62


class Entry(NamedTuple):
    """A tensor of any dtype."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # its bytes in the file
    end: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of a file, if the engine reads all their dtypes. Raises ModelFilesError."""
    tensors: dict[str, StoredTensor] = {}
    for name, dtype, shape, start, end in read_entries(path):
        if dtype not in DTYPE_BYTES:
            raise ModelFilesError(
                f"{path}: tensor `{name}` has dtype {dtype}, which this build does not read", code="M304"
            )
        wanted = math.prod(shape) * DTYPE_BYTES[dtype]
        if end - start != wanted:
            raise ModelFilesError(
                f"{path}: tensor `{name}` has {end - start} bytes, its shape {list(shape)} in {dtype} needs {wanted}",
                code="M303",
            )
        tensors[name] = StoredTensor(path, dtype, shape, start)
    return tensors


def read_entries(path: Path) -> list[Entry]:
    """Every tensor of a file, after the header and the file's length have been compared. Raises ModelFilesError."""
    try:
        with BufferedReader(open_file(path)) as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > size - 8:
                refuse_lfs_pointer(path)
                expected = f"at least {8 + length}" if size >= 8 and length <= _MAX_HEADER_BYTES else "a header"
                raise ModelFilesError(
                    f"{path}: truncated or not a safetensors file: expected {expected}, found {size} bytes", code="M303"
                )
            if length > _MAX_HEADER_BYTES:
                raise ModelFilesError(f"{path}: header of {length} bytes; at most {_MAX_HEADER_BYTES}", code="M303")
            header = decode(stream.read(length))
    except OSError as error:
        raise ModelFilesError.unreadable(path, error) from error
    except ValueError as error:
        raise ModelFilesError(f"{path}: not a safetensors file: its header is not valid JSON", code="M303") from error
    if not isinstance(header, dict):
        raise ModelFilesError(f"{path}: not a safetensors file: its header is not a JSON object", code="M303")
    header.pop("__metadata__", None)
    entries = [_entry(path, name, entry, 8 + length) for name, entry in header.items()]
    position = 8 + length
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.end)):
        if entry.start != position:
            raise ModelFilesError(
                f"{path}: tensor `{entry.name}` starts at byte {entry.start}, not {position}", code="M303"
            )
        position = entry.end
    if position != size:
        raise ModelFilesError(f"{path}: expected {position} bytes, found {size}", code="M303")
    return entries


def _entry(path: Path, name: str, entry: Any, base: int) -> Entry:
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        is_sound = isinstance(dtype, str) and isinstance(shape, list) and len(shape) <= _MAX_DIMENSIONS
        is_sound = is_sound and all(type(size) is int and 0 <= size < _MAX_SIZE for size in (*shape, start, end))
        is_sound = is_sound and start <= end
    except (TypeError, KeyError, ValueError):
        is_sound = False
    if not is_sound:
        raise ModelFilesError(f"{path}: the header entry of tensor `{name}` cannot be understood", code="M303")
    return Entry(name, dtype, tuple(shape), base + start, base + end)
