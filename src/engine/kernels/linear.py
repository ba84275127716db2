"""Linear layers over weights that are laid out once, when the model loads, in the order the kernel reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight in a kernel's own order. Only the KernelSet that packed it can read it."""

    weight: torch.Tensor  # [out_features, in_features], or the kernel's order of the same numbers
    bias: torch.Tensor | None  # [out_features]
    out_features: int
    in_features: int
    is_packed: bool  # False: `weight` is in checkpoint order and torch computes it


PackLinear = Callable[[torch.Tensor, torch.Tensor | None], PackedLinear]
Linear = Callable[[torch.Tensor, PackedLinear], torch.Tensor]
Embed = Callable[[torch.Tensor, PackedLinear], torch.Tensor]


def pack_linear_reference(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
    """weight: [out_features, in_features], kept as it is; bias: [out_features] or None."""
    return PackedLinear(weight, bias, weight.shape[0], weight.shape[1], is_packed=False)


def linear_reference(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """x: [T, in_features]. Returns x @ weight.T + bias, [T, out_features] in x's dtype."""
    return F.linear(x, packed.weight, packed.bias)


def embed_reference(token_ids: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """Rows of the weight, so that an embedding tied to the output layer is stored once.

    token_ids: [T] int64. Returns [T, in_features].
    """
    return F.embedding(token_ids, packed.weight)
