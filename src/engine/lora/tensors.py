"""AdapterTensors: the tensors in the file of an adapter, in its own type of elements."""

from __future__ import annotations

from collections import OrderedDict
from typing import Self

import torch

from ...config import ModelFilesError
from ...config.checkpoint.safetensors import read_header
from ...config.checkpoint.stored import FLOAT_DTYPES
from ...input_file import open_file
from ...model.adapter import AdapterSpec, StoredMatrix
from ..kernels.lora_add import AreFinite

_MAX_KEPT = 8  # tensors in memory while an adapter is read: the two pairs of all experts of a layer, and those before


class AdapterTensors:
    """The tensors of the file of an adapter. A context manager, which opens the file."""

    def __init__(self, spec: AdapterSpec, are_finite: AreFinite) -> None:
        self._path, self._header = spec.weights, read_header(spec.weights)
        self._file, self._are_finite = open_file(self._path), are_finite
        # Stacked experts and fused parts read a tensor repeatedly: the newest ones, with the chosen dimensions first.
        self._kept: OrderedDict[tuple[str, tuple[int, ...], tuple[int, ...]], torch.Tensor] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def matrix(self, stored: StoredMatrix) -> torch.Tensor:
        """A matrix, which may share memory with what is read later: it is not to be kept."""
        found = self._arranged(stored)[tuple(index for _, index in stored.chosen)]
        if stored.rows is not None:
            found = found[stored.rows[0] : stored.rows[1]]
        if (size := stored.head_dim) is not None:
            found = found.reshape(-1, 2, size // 2, found.shape[1]).transpose(1, 2).reshape(found.shape)
        return found.T if stored.is_transposed else found

    def read_into(self, stored: StoredMatrix, out: torch.Tensor) -> None:
        """Read a matrix of the shape of `out`, which is contiguous, without a copy where that is possible."""
        tensor = self._header[stored.name]
        is_plain = stored == StoredMatrix(stored.name, stored.view) and stored.view == tuple(out.shape)
        if is_plain and getattr(torch, FLOAT_DTYPES[tensor.dtype]) is out.dtype and out.device.type == "cpu":
            self._fill(stored.name, out)
        else:
            out.copy_(self.matrix(stored))

    def check(self, *matrices: StoredMatrix | None) -> None:
        """Raise what reading them would raise."""
        for stored in matrices:
            if stored is not None:
                self._arranged(stored)

    def _arranged(self, stored: StoredMatrix) -> torch.Tensor:
        """A tensor with the dimensions first of which an index is chosen: what is chosen is contiguous then."""
        chosen = tuple(dim for dim, _ in stored.chosen)
        key = stored.name, stored.view, chosen
        if key not in self._kept:
            others = [dim for dim in range(len(stored.view)) if dim not in chosen]
            self._kept[key] = self._read(stored.name).view(stored.view).permute(*chosen, *others).contiguous()
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return self._kept[key]

    def _read(self, name: str) -> torch.Tensor:
        stored = self._header[name]
        values = torch.empty(stored.shape, dtype=getattr(torch, FLOAT_DTYPES[stored.dtype]))
        self._fill(name, values)
        return values

    def _fill(self, name: str, values: torch.Tensor) -> None:
        """Read a tensor into memory of its shape and type."""
        view, done = values.view(-1).view(torch.uint8).numpy().data, 0
        self._file.seek(self._header[name].offset)
        while done < len(view):
            if not (count := self._file.readinto(view[done:])):
                raise EOFError(f"{self._path}: cut short while reading tensor `{name}`")
            done += count
        if not self._are_finite(values):
            raise ModelFilesError(
                f"{self._path}: tensor `{name}` has elements that are infinite or not a number", code="M303"
            )
