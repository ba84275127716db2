"""The difference of two softmaxes, as attention over heads that are pairs: arXiv:2410.05258.

    (softmax(q1 k1) - lambda * softmax(q2 k2)) [v1, v2]

The cache has [k1, k2] as one key and [v1, v2] as one value. The queries [q1, 0] and [0, q2] of two heads attend to them
as any queries do; what they return is subtracted, and normed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from ..kernels import KernelSet
from .loading import Held, Loadable, TensorReader
from .vector import Vector


class Lambda(Vector):
    """The factor of the second softmax, from four vectors, as a number that kernels take as an argument."""

    value: float

    def __init__(self, names: list[str], width: int, start: float, dtype: torch.dtype, device: torch.device) -> None:
        """names: of a query and a key, whose product is added, and of those whose product is subtracted. start: what is
        not learned."""
        super().__init__(names, [(width,)] * len(names), dtype, device)
        self._start = start

    def load(self, tensors: TensorReader) -> None:
        super().load(tensors)
        self._read()

    def take_weights(self, other: Lambda) -> None:
        super().take_weights(other)
        self._read()

    def hold(self, held: Held) -> None:
        super().hold(held)
        self._read()

    def _read(self) -> None:
        first, first_key, second, second_key = self.values.cpu().chunk(4)
        products = [(first * first_key).sum().item(), (second * second_key).sum().item()]
        self.value = math.exp(products[0]) - math.exp(products[1]) + self._start


class Difference:
    """What attention in pairs does before and after the kernels of any attention."""

    def __init__(self, factor: Lambda, start: float, head_dim: int, eps: float, kernels: KernelSet) -> None:
        """head_dim: of a pair. eps: of the norm, whose outputs are scaled by 1 - start."""
        self._factor, self._head_dim, self._eps, self._kernels = factor, head_dim, eps, kernels
        self._gains = torch.full((head_dim,), 1 - start, device=factor.values.device)

    def loadables(self) -> Iterator[Loadable]:
        yield self._factor

    def of_queries(self, queries: torch.Tensor) -> torch.Tensor:
        """queries: [T, pairs, head_dim]. Returns [T, 2 * pairs, head_dim]."""
        tokens, pairs, width = queries.shape
        return self._kernels.part_halves(queries.view(tokens * pairs, width)).view(tokens, 2 * pairs, width)

    def __call__(self, attended: torch.Tensor) -> torch.Tensor:
        """attended: [T, 2 * pairs * head_dim]. Returns [T, pairs * head_dim]."""
        width, columns = self._head_dim, attended.shape[1] // 2
        pairs = attended.view(len(attended) * columns // width, 2 * width)
        first, second = (self._kernels.take_columns(pairs, start, width) for start in (0, width))
        total = self._kernels.add_scaled(second, first, -self._factor.value)
        normed, _ = self._kernels.add_rms_norm(total, None, self._gains, self._eps)
        return normed.view(len(attended), columns)


def order_of_pairs(num_heads: int, num_kv_heads: int, head_dim: int) -> torch.Tensor:
    """The outputs of `in_proj` where the checkpoint has half of all heads after those with which they are paired.

    num_kv_heads, head_dim: of pairs. The elements of queries and keys that are rotated together become neighbours, so
    that the halves of a pair are rotated as heads of their own.
    """
    width = head_dim // 2
    neighbours = torch.arange(width).view(2, -1).T.flatten()
    first, found = 0, []
    for pairs, order in ((num_heads // 2, neighbours), (num_kv_heads, neighbours), (num_kv_heads, torch.arange(width))):
        rows = first + torch.arange(2 * pairs * width).view(2, pairs, width)[..., order]
        found.append(rows.transpose(0, 1).flatten())
        first += 2 * pairs * width
    return torch.cat(found)
