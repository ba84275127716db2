"""Writes a safetensors file tensor by tensor: the header first, from dtypes and shapes that are known before."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import torch

from ..config.checkpoint.stored import DTYPE_BYTES
from ..input_file import open_file

Layout = Mapping[str, tuple[str, tuple[int, ...]]]  # name -> dtype as safetensors writes it, and shape
_DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_CHUNK_BYTES = 1 << 24
_LENGTH_BYTES = 8  # before the header
_ALIGNMENT = 64  # bytes of a cache line, for readers that use a tensor where it is mapped


def dtype_name(dtype: torch.dtype) -> str:
    return _DTYPES[dtype]


def num_bytes(layout: Layout) -> int:
    return sum(math.prod(shape) * DTYPE_BYTES[dtype] for dtype, shape in layout.values())


def write(path: Path, layout: Layout, content: Iterator[bytes | memoryview]) -> None:
    """content: the bytes of all tensors, in the order of the layout. The file is on the disk when this returns."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in layout.items():
        start, end = end, end + math.prod(shape) * DTYPE_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH_BYTES + len(text)) % _ALIGNMENT)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for part in content:
            stream.write(part)
        assert stream.tell() == _LENGTH_BYTES + len(text) + end, (stream.tell(), len(text), end)
        to_disk(stream)


def to_disk(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def bytes_of_tensor(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)


def bytes_in_file(path: Path, offset: int, count: int) -> Iterator[bytes]:
    """Raises OSError if the file has fewer."""
    with open_file(path) as stream:
        stream.seek(offset)
        while count:
            part = stream.read(min(count, _CHUNK_BYTES))
            if not part:
                raise OSError(f"{path}: cut short while it was read")
            count -= len(part)
            yield part
