"""Weights of a layer in host memory, and the tensors through which the layer's kernels read a copy of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..weight_storages import aligned, storages_of

_PIECE_BYTES = 1 << 24  # torch rounds a pinned allocation up to a power of two: only the last piece of a layer can grow


class _View(NamedTuple):
    tensor: torch.Tensor
    first: int  # byte of the layer's weights at which it begins
    size: torch.Size
    stride: tuple[int, ...]


class HostWeights:
    """Bytes of a layer's tensors, one storage after another."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the tensors and takes their memory on the device from them: they are empty until `point_to`.

        tensors: of one device. Views of one storage stay views of one. Memory that other tensors use stays there too.
        """
        storages = storages_of(tensors)
        self.num_bytes = sum(aligned(storage.nbytes()) for storage, _ in storages)
        self.device = tensors[0].device
        is_pinned = self.device.type == "cuda"
        self.pieces = [  # [bytes] uint8, in the order of the bytes
            torch.empty(min(_PIECE_BYTES, self.num_bytes - start), dtype=torch.uint8, pin_memory=is_pinned)
            for start in range(0, self.num_bytes, _PIECE_BYTES)
        ]
        self._views: list[_View] = []
        first = 0
        for storage, users in storages:
            self._write(torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage), first)
            for tensor in users:
                offset = first + tensor.storage_offset() * tensor.itemsize
                self._views.append(_View(tensor, int(offset), tensor.size(), tensor.stride()))
                tensor.set_(torch.UntypedStorage(0, device=self.device))  # type: ignore[no-untyped-call]
            first += aligned(storage.nbytes())

    def point_to(self, place: torch.Tensor) -> None:
        """Makes the tensors views of a place on the device, [num_bytes or more] uint8."""
        for tensor, first, size, stride in self._views:
            offset = place.storage_offset() + first
            tensor.set_(place.untyped_storage(), offset // tensor.itemsize, size, stride)

    def _write(self, content: torch.Tensor, first: int) -> None:
        """content: [bytes] uint8, from byte `first` on."""
        done = 0
        while done < len(content):
            index, start = divmod(first + done, _PIECE_BYTES)
            part = self.pieces[index][start : start + len(content) - done]
            part.copy_(content[done : done + len(part)])
            done += len(part)
