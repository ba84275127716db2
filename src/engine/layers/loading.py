"""How layers get their weights: each says which tensors it wants, then pulls them, one place at a time.

A layer pulls into the buffer where the numbers will be fused or packed, so at no time do weights exist twice as a
whole, and nothing is left unfilled: there is no tensor that a layer did not pull.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch


class TensorReader(Protocol):
    def read(self, name: str, into: torch.Tensor) -> None:
        """Fills `into`, contiguous, with the tensor of that name, converted to its dtype."""
        ...

    def view(self, name: str, dtype: torch.dtype) -> torch.Tensor | None:
        """The tensor where the file lies in memory, to be read and let go; None where it must be copied."""
        ...


class Loadable(Protocol):
    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the tensors that `load` will read."""
        ...

    def load(self, tensors: TensorReader) -> None: ...

    @property
    def num_bytes(self) -> int:
        """Of the weights, once they are loaded."""
        ...
