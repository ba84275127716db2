"""Headers of safetensors files: an 8-byte length, JSON with name -> dtype, shape, offsets, then the bytes.

A header is believed only if its tensors cover the rest of the file exactly, without gaps or overlaps.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..errors import ModelFilesError
from .stored import DTYPE_BYTES, StoredTensor

_MAX_HEADER_BYTES = 100_000_000  # as the safetensors library


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of a file, after the header and the file's length have been compared. Raises ModelFilesError."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > size - 8:
                expected = f"at least {8 + length}" if size >= 8 and length <= _MAX_HEADER_BYTES else "a header"
                raise ModelFilesError(
                    f"{path}: truncated or not a safetensors file: expected {expected}, found {size} bytes", code="M303"
                )
            if length > _MAX_HEADER_BYTES:
                raise ModelFilesError(f"{path}: header of {length} bytes; at most {_MAX_HEADER_BYTES}", code="M303")
            header = json.loads(stream.read(length))
    except OSError as error:
        raise ModelFilesError(f"{path}: cannot be read: {error.strerror}", code="M302") from error
    except (ValueError, RecursionError) as error:
        raise ModelFilesError(f"{path}: not a safetensors file: its header is not valid JSON", code="M303") from error
    if not isinstance(header, dict):
        raise ModelFilesError(f"{path}: not a safetensors file: its header is not a JSON object", code="M303")
    header.pop("__metadata__", None)
    tensors: dict[str, StoredTensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        tensor, end = _read_entry(path, name, entry, 8 + length)
        tensors[name] = tensor
        spans.append((tensor.offset, end, name))
    position = 8 + length
    for start, end, name in sorted(spans):
        if start != position:
            raise ModelFilesError(f"{path}: tensor `{name}` starts at byte {start}, not {position}", code="M303")
        position = end
    if position != size:
        raise ModelFilesError(f"{path}: expected {position} bytes, found {size}", code="M303")
    return tensors


def _read_entry(path: Path, name: str, entry: Any, base: int) -> tuple[StoredTensor, int]:
    """The tensor and the byte after its last; the bytes must be those of dtype and shape."""
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, start, end]
        is_sound = all(isinstance(number, int) and number >= 0 for number in numbers) and isinstance(dtype, str)
    except (TypeError, KeyError, ValueError):
        is_sound = False
    if not is_sound:
        raise ModelFilesError(f"{path}: the header entry of tensor `{name}` cannot be understood", code="M303")
    if dtype not in DTYPE_BYTES:
        raise ModelFilesError(f"{path}: tensor `{name}` has dtype {dtype}, which this build does not read", code="M304")
    wanted = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - start != wanted:
        raise ModelFilesError(
            f"{path}: tensor `{name}` has {end - start} bytes, its shape {shape} in {dtype} needs {wanted}",
            code="M303",
        )
    return StoredTensor(path, dtype, tuple(shape), base + start), base + end
