"""AdapterTensors: the tensors in the file of an adapter, in float32."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch

from ...config import ModelFilesError
from ...config.checkpoint.safetensors import read_header
from ...config.checkpoint.stored import FLOAT_DTYPES
from ...input_file import open_file
from ...model.adapter import AdapterSpec, StoredMatrix

_MAX_KEPT = 8  # tensors in memory while an adapter is read: the two pairs of all experts of a layer, and those before


class AdapterTensors:
    """The tensors of the file of an adapter, in float32."""

    def __init__(self, spec: AdapterSpec) -> None:
        self._path, self._header = spec.weights, read_header(spec.weights)
        # Stacked experts and fused parts read a tensor repeatedly: the newest ones, with the chosen dimensions first.
        self._kept: OrderedDict[tuple[str, tuple[int, ...], tuple[int, ...]], torch.Tensor] = OrderedDict()

    def matrix(self, stored: StoredMatrix) -> torch.Tensor:
        found = self._arranged(stored)[tuple(index for _, index in stored.chosen)]
        if stored.rows is not None:
            found = found[stored.rows[0] : stored.rows[1]]
        if (size := stored.head_dim) is not None:
            found = found.reshape(-1, 2, size // 2, found.shape[1]).transpose(1, 2).reshape(found.shape)
        return found.T if stored.is_transposed else found

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
        dtype = getattr(torch, FLOAT_DTYPES[stored.dtype])
        content = bytearray(math.prod(stored.shape) * dtype.itemsize)
        with open_file(self._path) as file:
            file.seek(stored.offset)
            view, done = memoryview(content), 0
            while done < len(content):
                if not (count := file.readinto(view[done:])):
                    raise EOFError(f"{self._path}: cut short while reading tensor `{name}`")
                done += count
        values = torch.frombuffer(content, dtype=dtype).view(stored.shape).float()
        # The sum of all is finite nearly always, and takes a fraction of the time.
        if not math.isfinite(values.sum().item()) and not values.isfinite().all():
            raise ModelFilesError(
                f"{self._path}: tensor `{name}` has elements that are infinite or not a number", code="M303"
            )
        return values
