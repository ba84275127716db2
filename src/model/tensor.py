"""Tensor: a tensor of a checkpoint, or one for each expert or head."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tensor:
    """copies: how many there are, one per expert or head, whose number takes the place of `{}`.

    used: how many a token needs.
    is_matrix: of a linear layer, whose weights can be quantised: [outputs, inputs].
    """

    name: str
    shape: tuple[int, ...]
    is_matrix: bool = False
    copies: int = 1
    used: int = 1

    @property
    def size(self) -> int:
        """Elements of one copy."""
        return math.prod(self.shape)


def linear_tensors(name: str, outputs: int, inputs: int, has_bias: bool = False) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (outputs, inputs), is_matrix=True)
    if has_bias:
        yield Tensor(f"{name}.bias", (outputs,))
