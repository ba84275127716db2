"""Token embedding. Tied to the output layer, both use one matrix, which is stored once.

Of several processes that compute one model each can have some rows of the matrix (EmbeddingPart).

A multiplier is not rounded to the model's dtype: where transformers does that (Gemma), the caller does (`rounded`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Self

import torch

from ..collectives import Ranks
from ..kernels import KernelSet, PackedLinear
from .linear import Linear
from .loading import Held, TensorReader, linear_of, tensor_of


class Embedding:
    """Rows of a separate matrix."""

    def __init__(
        self,
        name: str,
        vocab_size: int,
        width: int,
        kernels: KernelSet,
        dtype: torch.dtype,
        device: torch.device,
        multiplier: float = 1.0,
        offset: int = 0,
    ) -> None:
        """offset: the row of id 0."""
        self.name = name
        self._offset = offset
        self._kernels = kernels
        self.multiplier = multiplier
        self._shape, self._dtype, self._device = (vocab_size, width), dtype, device
        self._weight: torch.Tensor | None = None
        self._codes: PackedLinear | None = None  # instead of numbers

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{self.name}.weight", self._shape

    def load(self, tensors: TensorReader) -> None:
        name, pack = f"{self.name}.weight", self._kernels.pack_grouped
        grouped = None if pack is None or self._offset else tensors.grouped(name, self._dtype)
        if pack is not None and grouped is not None:
            self._codes = pack([grouped], None, self._dtype)
        if self._codes is None:
            self._weight = torch.empty(self._shape, dtype=self._dtype, device=self._device)
            tensors.read(name, self._weight)

    def take_weights(self, other: Self) -> None:
        self._weight, self._codes = other._weight, other._codes

    def held(self) -> Held:
        return {"weight": self.weight} if self._codes is None else {"codes": self._codes}

    def hold(self, held: Held) -> None:
        if "codes" in held:
            self._codes = linear_of(held, "codes", *self._shape, self._dtype)
        else:
            self._weight = tensor_of(held, "weight", torch.empty(self._shape, dtype=self._dtype, device="meta"))

    @property
    def weight(self) -> torch.Tensor:
        """The numbers, which it has if the checkpoint's own codes are not kept."""
        assert self._weight is not None, f"{self.name} has no numbers"
        return self._weight

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes if self._codes is None else self._codes.num_bytes

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids: [T] int64. Returns [T, width]."""
        if self._codes is not None:
            rows = self._kernels.embed(token_ids, self._codes)
        else:
            rows = self._kernels.copy_rows(self.weight[self._offset :], token_ids)
        return _scaled(rows, self.multiplier, self._kernels)


class TiedEmbedding:
    """Rows of the output layer's matrix, in the layout of its kernel."""

    def __init__(self, output: Linear, kernels: KernelSet, multiplier: float = 1.0) -> None:
        self._output = output
        self.multiplier = multiplier
        self._kernels = kernels

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        return _scaled(self._kernels.embed(token_ids, self._output.packed), self.multiplier, self._kernels)


class EmbeddingPart:
    """Rows of a matrix of which each rank has a part, of the same number of rows."""

    def __init__(self, part: Embedding | TiedEmbedding, rows_each: int, ranks: Ranks) -> None:
        self.part = part
        self._rows_each, self._ranks = rows_each, ranks

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        rows = self.part(self._ranks.own_rows(token_ids, self._rows_each))
        return self._ranks.rows_of_owners(rows, token_ids, self._rows_each)


class Sines:
    """Positions that are computed: sines of each position at falling frequencies, then their cosines.

    Source: arXiv:1706.03762, section 3.5, with the sines before the cosines, as in tensor2tensor.
    """

    def __init__(
        self, num_rows: int, width: int, kernels: KernelSet, dtype: torch.dtype, device: torch.device, offset: int
    ) -> None:
        """offset: the row of position 0."""
        half = width // 2
        frequencies = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
        angles = torch.arange(num_rows).float()[:, None] * frequencies
        rows = torch.cat((angles.sin(), angles.cos(), torch.zeros(num_rows, width % 2)), 1)
        self._rows = rows[offset:].to(device, dtype)
        self._kernels = kernels

    def __call__(self, positions: torch.Tensor) -> torch.Tensor:
        """positions: [T] int64. Returns [T, width]."""
        return self._kernels.copy_rows(self._rows, positions)


def rounded(value: float, dtype: torch.dtype) -> float:
    """The value that a tensor of this dtype holds."""
    return torch.tensor(value, dtype=dtype).item()


def _scaled(rows: torch.Tensor, multiplier: float, kernels: KernelSet) -> torch.Tensor:
    return rows if multiplier == 1.0 else kernels.scale_and_cap(rows, multiplier)
