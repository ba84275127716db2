"""SlicedTensors: the part of a checkpoint's tensors that one of several devices has."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...model.tensor_parallel import Slice
from ..kernels import Grouped, Integers
from ..layers.loading import TensorReader


class SlicedTensors:
    """A TensorReader. Of a tensor in a file that can be mapped, the bytes of other devices are not copied."""

    def __init__(self, tensors: TensorReader, slices: Mapping[str, Slice]) -> None:
        """slices: by name; other tensors are read as a whole."""
        self._tensors, self._slices = tensors, slices

    def read(self, name: str, into: torch.Tensor) -> None:
        own = self._slices.get(name)
        if own is None:
            self._tensors.read(name, into)
            return
        whole = self._tensors.view(name, into.dtype)
        if whole is None:
            whole = torch.empty(own.whole, dtype=into.dtype, device=into.device)
            self._tensors.read(name, whole)
        done = 0
        for each in own.ranges:
            into.narrow(own.dim, done, len(each)).copy_(whole.narrow(own.dim, each.start, len(each)))
            done += len(each)
        into.narrow(own.dim, done, into.shape[own.dim] - done).zero_()

    def view(self, name: str, dtype: torch.dtype) -> torch.Tensor | None:
        return None if name in self._slices else self._tensors.view(name, dtype)

    def grouped(self, name: str, dtype: torch.dtype) -> Grouped | None:
        """Returns None: codes are not divided."""

    def integers(self, name: str) -> Integers | None:
        """Returns None: integers are not divided."""
