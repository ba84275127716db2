"""Weights of a checkpoint, read tensor by tensor into the model.

config/checkpoint reads the position of each tensor from the files' headers; weight_reader.py reads the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from ...config import ModelFilesError
from ...config.checkpoint.group_layouts import group_layout
from ...config.checkpoint.stored import BLOCKS, FLOAT_DTYPES, Packed, StoredTensor
from ..kernels import Grouped, Integers
from ..kernels.dequantise_packed import ROWS_STEP, dequantise
from .dequantise import dequantised
from .grouped_blocks import of_blocks
from .grouped_weights import of_packed
from .weight_reader import ByteReader, EagerReader, LazyReader

DTYPES: dict[str, torch.dtype] = {stored: getattr(torch, name) for stored, name in FLOAT_DTYPES.items()}
PART_DTYPES = {  # of the tensors of a quantised matrix
    **DTYPES,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}
_LEAST_MAPPED = 1 << 20  # bytes of a tensor; reading a smaller one is faster than mapping it
_CHUNK_BYTES = 1 << 24  # of a tensor that is converted while it is read
_CHUNK_ELEMENTS = 1 << 22  # of a quantised matrix that are computed at once, in float32


class Checkpoint:
    """The tensors of a directory, read on request."""

    def __init__(self, folder: Path, tensors: Mapping[str, StoredTensor], *, is_eager: bool = False) -> None:
        """is_eager: read each file as a whole when its first tensor is requested."""
        self.folder = folder
        self.tensors = dict(tensors)
        self._read: set[str] = set()
        self._reader: ByteReader = EagerReader(in_files(self.tensors.values())) if is_eager else LazyReader()

    def read(self, name: str, into: torch.Tensor) -> None:
        """Fills `into`, contiguous, of the stored shape. Once per tensor. Converts if the dtypes differ.

        An element with a factor is rounded twice, as the product of a factor and an output would be.
        """
        stored = self.tensors[name]
        if stored.packed is not None:
            self._dequantise(stored.packed, into)
        elif stored.pieces:
            parts = torch.split(into.view(-1), [piece.num_elements for piece in stored.pieces])
            for piece, part in zip(stored.pieces, parts, strict=True):
                self._read_contiguous(piece, name, part)
        elif stored.is_quantised:
            self._read_blocks(stored, name, into.view(-1))
        elif (mapped := self._mapped(stored)) is not None:
            into.copy_(mapped)  # torch uses all threads
        elif stored.strides is not None:
            self._read_strided(stored, name, into)
        else:
            self._read_contiguous(stored, name, into.view(-1))
        self._done(name, stored)
        if stored.factors:
            parts = torch.split(into, [rows for rows, _ in stored.factors])
            for part, (_, factor) in zip(parts, stored.factors, strict=True):
                part.mul_(factor)
        _check_finite(stored, name, into)

    def view(self, name: str, dtype: torch.dtype) -> torch.Tensor | None:
        """The tensor in a map of the file, released together with it; None if it must be read or changed."""
        stored = self.tensors[name]
        is_as_stored = DTYPES.get(stored.dtype) is dtype and not stored.factors and stored.packed is None
        mapped = self._mapped(stored) if is_as_stored else None
        if mapped is not None:
            _check_finite(stored, name, mapped)
        return mapped

    def grouped(self, name: str, dtype: torch.dtype) -> Grouped | None:
        """A quantised matrix as its codes and scales; None if it is not one, or has no such form.

        dtype: the model's. A matrix for which this is None can still be read.
        """
        stored = self.tensors[name]
        if group_layout(stored) is None:
            return None
        if stored.packed is not None:
            parts = {end: self._part(f"{stored.packed.layer}.{end}", each) for end, each in stored.packed.parts.items()}
            found = of_packed(stored.packed, parts, dtype)
            rows = stored.packed.rows
            if found is not None and len(rows) != stored.packed.shape[0]:
                found = found.rows(slice(rows.start, rows.stop, rows.step))
        elif stored.is_quantised:
            content = self._mapped(stored)
            if content is None:
                content = torch.empty(stored.num_bytes, dtype=torch.uint8)
                self._fill(stored, name, 0, content)
            found = of_blocks(content, stored.dtype, (stored.shape[0], stored.shape[1]))
        else:
            return None
        if found is not None:
            for each in (found.scales, found.minima):
                for numbers in () if each is None else (each.values, each.outer):
                    if numbers is not None and numbers.is_floating_point():
                        _check_finite(stored, name, numbers)
            self._done(name, stored)
        return found

    def integers(self, name: str) -> Integers | None:
        packed = self.tensors[name].packed
        if packed is None or not packed.method.rounds_rows:
            return None
        parts = {end: self._part(f"{packed.layer}.{end}", packed.parts[end]) for end in ("weight", "weight_scale")}
        rows = slice(packed.rows.start, packed.rows.stop, packed.rows.step)
        self._done(name, self.tensors[name])
        return Integers(parts["weight"][rows], parts["weight_scale"].float().flatten()[rows])

    def _done(self, name: str, stored: StoredTensor) -> None:
        """Report a tensor as read, once: its codes may be read in vain, if another part of its layer has none."""
        if name not in self._read:
            self._read.add(name)
            for source in in_files([stored]):
                self._reader.done(source.file)

    def _dequantise(self, packed: Packed, into: torch.Tensor) -> None:
        """A part of the rows at a time: never a full second copy in float32."""
        parts = {end: self._part(f"{packed.layer}.{end}", stored) for end, stored in packed.parts.items()}
        step = max(1, _CHUNK_ELEMENTS // max(1, packed.shape[1]) // ROWS_STEP) * ROWS_STEP
        rows, done = packed.rows, 0
        while done < len(rows):
            start = rows[done] // ROWS_STEP * ROWS_STEP
            stop = min(start + step, packed.shape[0])
            count = len(range(rows[done], min(stop, rows.stop), rows.step))
            try:
                values = dequantise(packed, parts, slice(start, stop))
            except IndexError as error:
                file = next(iter(packed.parts.values())).file
                raise ModelFilesError(f"{file}: the order of inputs of `{packed.layer}` {error}", code="M303") from None
            into[done : done + count].copy_(values[rows[done] - start :: rows.step][:count])
            done += count

    def _part(self, name: str, stored: StoredTensor) -> torch.Tensor:
        """A tensor of a quantised matrix, as it is stored."""
        whole = self._mapped(stored)
        if whole is None:
            whole = torch.empty(stored.shape, dtype=PART_DTYPES[stored.dtype])
            self._fill(stored, name, 0, whole.view(-1))
        if stored.dtype in FLOAT_DTYPES:
            _check_finite(stored, name, whole)
        return whole

    def _mapped(self, stored: StoredTensor) -> torch.Tensor | None:
        dtype = torch.uint8 if stored.is_quantised else PART_DTYPES.get(stored.dtype)
        if (
            dtype is None
            or stored.strides is not None
            or stored.pieces
            or stored.num_bytes < _LEAST_MAPPED
            or stored.offset % dtype.itemsize
        ):
            return None
        mapped = self._reader.map(stored.file, stored.offset, stored.num_bytes)
        if mapped is None:
            return None
        flat = torch.frombuffer(mapped, dtype=dtype)
        return flat if stored.is_quantised else flat.view(stored.shape)

    def _read_contiguous(self, stored: StoredTensor, name: str, flat: torch.Tensor) -> None:
        dtype = PART_DTYPES[stored.dtype]
        if dtype == flat.dtype and flat.device.type == "cpu":
            self._fill(stored, name, 0, flat)
            return
        step = _CHUNK_BYTES // dtype.itemsize
        staging = torch.empty(min(step, flat.numel()), dtype=dtype)
        for start in range(0, flat.numel(), step):
            part = staging[: flat.numel() - start]
            self._fill(stored, name, start * dtype.itemsize, part)
            flat[start : start + part.numel()].copy_(part)

    def _read_blocks(self, stored: StoredTensor, name: str, flat: torch.Tensor) -> None:
        elements, size = BLOCKS[stored.dtype]
        step = _CHUNK_BYTES // (4 * elements)  # blocks, whose elements are in float32
        num_blocks = flat.numel() // elements
        staging = torch.empty(min(step, num_blocks) * size, dtype=torch.uint8)
        for first in range(0, num_blocks, step):
            part = staging[: (num_blocks - first) * size]
            self._fill(stored, name, first * size, part)
            numbers = dequantised(part, stored.dtype)
            flat[first * elements : first * elements + numbers.numel()].copy_(numbers)

    def _read_strided(self, stored: StoredTensor, name: str, into: torch.Tensor) -> None:
        """A transposed or sliced tensor: reads everything from its first to its last element, then selects its own."""
        assert stored.strides is not None
        staging = torch.empty(stored.span, dtype=DTYPES[stored.dtype])
        self._fill(stored, name, 0, staging)
        into.copy_(staging.as_strided(stored.shape, stored.strides))

    def _fill(self, stored: StoredTensor, name: str, start: int, into: torch.Tensor) -> None:
        if into.numel():
            view = memoryview(into.view(torch.uint8).numpy().data)
            self._reader.read(stored.file, stored.offset + start, view, name)


def in_files(tensors: Iterable[StoredTensor]) -> list[StoredTensor]:
    """The tensors as they are in files: in place of one that is made of others, these."""
    parts = (
        (tensor.pieces or (tensor,)) if tensor.packed is None else tensor.packed.parts.values() for tensor in tensors
    )
    return [part for each in parts for part in each]


def _check_finite(stored: StoredTensor, name: str, loaded: torch.Tensor) -> None:
    """Raises ModelFilesError for NaN and infinity: every answer of such a model would be wrong, without an error.

    The smallest and the largest element show both. `isfinite`, which makes a temporary tensor, is 20 times slower.
    """
    if loaded.numel() and not all(math.isfinite(bound.item()) for bound in torch.aminmax(loaded)):
        is_converted = DTYPES.get(stored.dtype, loaded.dtype) is not loaded.dtype
        dtype = str(loaded.dtype).removeprefix("torch.")
        where = f" as {dtype}; it is stored as {stored.dtype}, see `model.dtype`" if is_converted else ""
        raise ModelFilesError(f"{stored.file}: tensor `{name}` has NaN or infinite elements{where}", code="M303")
