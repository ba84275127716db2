"""Weights from safetensors files, tensor by tensor into the place that asks for them, or made up from a seed.

Files are read, not mapped: mapped pages would count as memory of the process, a second copy of the model while it
loads. Format: an 8-byte length, a JSON header with name -> dtype, shape, offsets, then the bytes.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ...config import ModelFilesError

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_MAX_HEADER_BYTES = 100_000_000  # as the safetensors library
_CHUNK_BYTES = 1 << 24  # of a tensor that is converted on its way
_UNUSED = ("rotary_emb.inv_freq", "masked_bias", "attn.bias")  # buffers that old checkpoints carry along


@dataclass(frozen=True, slots=True)
class StoredTensor:
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    num_bytes: int


class Checkpoint:
    """The tensors of a directory. Headers are read and checked at once, bytes when asked for."""

    def __init__(self, folder: Path, file_names: Sequence[str]) -> None:
        """Raises ModelFilesError, naming the file, if one is missing, cut short or no safetensors file."""
        self.folder = folder
        self.tensors: dict[str, StoredTensor] = {}
        for file_name in file_names:
            self.tensors.update(_read_header(folder / file_name))

    def check(self, wanted: Iterable[tuple[str, tuple[int, ...]]], is_tied: bool) -> None:
        """Raises ModelFilesError unless the files hold what the model wants, all of it in its shape, and no more.

        is_tied: the output layer is the embedding, so an `lm_head.weight` in the files is a copy of it.
        """
        shapes = dict(wanted)
        missing = [name for name in shapes if name not in self.tensors]
        if missing:
            raise ModelFilesError(f"{self.folder}: {_some(missing)} not in any of its weight files")
        for name, shape in shapes.items():
            stored = self.tensors[name]
            if stored.shape != shape:
                raise ModelFilesError(
                    f"{stored.file}: tensor `{name}` has shape {list(stored.shape)}, config.json says {list(shape)}"
                )
            if stored.dtype not in _DTYPES:
                raise ModelFilesError(
                    f"{stored.file}: tensor `{name}` has dtype {stored.dtype}; supported: {', '.join(_DTYPES)}"
                )
            if stored.num_bytes != math.prod(shape) * _DTYPES[stored.dtype].itemsize:
                raise ModelFilesError(
                    f"{stored.file}: tensor `{name}` has {stored.num_bytes} bytes, not those of its shape"
                )
        surplus = [name for name in self.tensors if name not in shapes and not name.endswith(_UNUSED)]
        if is_tied:
            surplus = [name for name in surplus if name != "lm_head.weight"]
        if surplus:
            raise ModelFilesError(
                f"{self.folder}: {_some(surplus)} in its weight files, but the model has no use for it"
            )

    def read(self, name: str, into: torch.Tensor) -> None:
        """Fills `into`, contiguous, of the stored shape. Converts on the way if the dtypes differ."""
        stored = self.tensors[name]
        dtype = _DTYPES[stored.dtype]
        flat = into.view(-1)
        if dtype == into.dtype and into.device.type == "cpu":
            _read_bytes(stored, name, 0, flat)
            return
        step = _CHUNK_BYTES // dtype.itemsize
        staging = torch.empty(min(step, flat.numel()), dtype=dtype)
        for start in range(0, flat.numel(), step):
            part = staging[: flat.numel() - start]
            _read_bytes(stored, name, start * dtype.itemsize, part)
            flat[start : start + part.numel()].copy_(part)


class DummyWeights:
    """Seeded noise of the size that models start training from. The same for a seed and a name, whatever the order."""

    def __init__(self, seed: int, deviation: float = 0.02) -> None:
        self._seed = seed
        self._step = deviation * math.sqrt(12) / 2**16  # of a uniform number in 2**16 steps

    def read(self, name: str, into: torch.Tensor) -> None:
        if into.ndim == 1:
            into.fill_(0.0 if name.endswith(".bias") else 1.0)
            return
        generator = np.random.Generator(np.random.SFC64([self._seed, zlib.crc32(name.encode())]))
        flat = into.view(-1)
        step = 1 << 15  # small enough for one thread of torch: waking the others costs more than it saves
        for start in range(0, flat.numel(), step):
            part = flat[start : start + step]
            words = generator.integers(0, 2**64, -(-part.numel() // 4), dtype=np.uint64)  # each is four numbers
            bits = torch.from_numpy(words.view(np.int16)[: part.numel()])
            part.copy_(bits.float().mul_(self._step))


def _read_header(file: Path) -> dict[str, StoredTensor]:
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            is_whole = size >= 8 and length <= min(size - 8, _MAX_HEADER_BYTES)
            header = json.loads(stream.read(length)) if is_whole else {}
        entries = {
            name: (entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except OSError as error:
        raise ModelFilesError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelFilesError(f"{file}: not a safetensors file: its header cannot be understood") from error
    if not is_whole:
        raise ModelFilesError(f"{file}: cut short or not a safetensors file ({size} bytes)")
    tensors: dict[str, StoredTensor] = {}
    start = 8 + length
    for name, (dtype, shape, begin, end) in entries.items():
        if start + end > size:
            raise ModelFilesError(f"{file}: cut short: tensor `{name}` ends at byte {start + end}, the file at {size}")
        tensors[name] = StoredTensor(file, dtype, shape, start + begin, end - begin)
    return tensors


def _read_bytes(stored: StoredTensor, name: str, start: int, into: torch.Tensor) -> None:
    view = memoryview(into.view(torch.uint8).numpy().data)
    with stored.file.open("rb", buffering=0) as stream:
        stream.seek(stored.offset + start)
        done = 0
        while done < len(view):
            count = stream.readinto(view[done:])
            if not count:
                raise ModelFilesError(f"{stored.file}: cut short while reading tensor `{name}`")
            done += count


def _some(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"tensor{'s' if len(names) > 1 else ''} {shown}{more} {'are' if len(names) > 1 else 'is'}"
