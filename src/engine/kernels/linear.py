"""Linear layers: a packed weight, the operations over it, and their references in torch.

A weight is packed once, when the model loads, in the order that a kernel reads. The reference keeps its order:

    packed = pack_linear_reference(weight, bias)
    out = linear_reference(x, packed)    # x @ weight.T + bias

panel_packing.py and panel_linear.py have the same operations for CPUs, gpu/linear.py for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from .grouped import Grouped, grouped_linear_reference, grouped_rows_reference
from .grouped_panels import PANELS_DTYPE
from .packed_codes import PackedCodes
from .quantised import (
    Integers,
    quantise_reference,
    quantised_linear_reference,
    quantised_rows_reference,
    rounded_rows_reference,
)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight in the layout of a kernel. Only the KernelSet that packed it can read it.

    Its forms, by the optional fields that are set:
        none: elements in `weight`.
        scales: int8 or int4 codes, with scales in the layout of quantised.py. With `rounds_rows`, rows of x are rounded
            to int8 too, and the product is one of integers.
        scales, and order if inputs are permuted: a checkpoint's own codes in panels, of type PANELS_DTYPE; `scales` is
            their format (cpu/grouped.h).
        grouped: a checkpoint's own codes, which torch multiplies; `weight` is those codes.
        codes: a checkpoint's own codes, for the kernels of GPUs; `weight` is their tensor.
        pieces: layers whose outputs follow one another; the other fields are those of the first piece, with the
            `out_features` of all.
    """

    weight: torch.Tensor  # [out_features, in_features], or in the kernel's layout: elements, codes or bytes
    bias: torch.Tensor | None  # [out_features]
    out_features: int
    in_features: int
    is_packed: bool  # False: torch computes it; `weight` is in checkpoint order unless it is quantised
    dtype: torch.dtype  # of the elements before quantisation
    scales: torch.Tensor | None = None
    rounds_rows: bool = False
    grouped: Grouped | None = None
    order: torch.Tensor | None = None
    codes: PackedCodes | None = None
    pieces: tuple[PackedLinear, ...] = ()

    @property
    def is_grouped(self) -> bool:
        """Whether the weight has codes and scales of a checkpoint."""
        return self.grouped is not None or self.codes is not None or self.weight.dtype == PANELS_DTYPE

    @property
    def num_bytes(self) -> int:
        if self.pieces:
            return sum(piece.num_bytes for piece in self.pieces)
        if (grouped := self.grouped or self.codes) is not None:
            return grouped.num_bytes + (0 if self.bias is None else self.bias.nbytes)
        scales = None if self.is_grouped else self.scales  # a format of a kilobyte
        return sum(tensor.nbytes for tensor in (self.weight, self.bias, scales) if tensor is not None)


PackLinear = Callable[[torch.Tensor, torch.Tensor | None], PackedLinear]
RepackLinear = Callable[[PackedLinear], PackedLinear]  # of the torch kernels, for the kernels of this set
QuantiseLinear = Callable[[torch.Tensor, torch.Tensor | None, str], PackedLinear]
# None: the kernels do not take its groups
PackGrouped = Callable[[Sequence[Grouped], torch.Tensor | None, torch.dtype], PackedLinear | None]
PackIntegers = Callable[[Integers, torch.Tensor | None, torch.dtype], PackedLinear | None]  # the same
JoinLinear = Callable[[Sequence[PackedLinear]], PackedLinear]  # of grouped layers that are not used otherwise
Linear = Callable[[torch.Tensor, PackedLinear], torch.Tensor]
Embed = Callable[[torch.Tensor, PackedLinear], torch.Tensor]
# x, residual, weight of the norm, its eps, and the layer: described at KernelSet.norm_linear.
NormLinear = Callable[
    [torch.Tensor, torch.Tensor | None, torch.Tensor, float, PackedLinear], tuple[torch.Tensor, torch.Tensor]
]


def pack_linear_reference(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
    """weight: [out_features, in_features], not changed; bias: [out_features] or None."""
    return PackedLinear(weight, bias, weight.shape[0], weight.shape[1], is_packed=False, dtype=weight.dtype)


def quantise_linear_reference(weight: torch.Tensor, bias: torch.Tensor | None, scheme: str) -> PackedLinear:
    """weight: [out_features, in_features] in any float type; scheme: int8 or int4 (model/quantised.py)."""
    codes, scales = quantise_reference(weight, scheme)
    out_features, in_features = weight.shape
    return PackedLinear(codes, bias, out_features, in_features, is_packed=False, dtype=weight.dtype, scales=scales)


def join_linear_reference(pieces: Sequence[PackedLinear]) -> PackedLinear:
    """One layer with the outputs of the pieces, in order."""
    return replace(pieces[0], out_features=sum(piece.out_features for piece in pieces), pieces=tuple(pieces))


def rounding_rows(quantise: QuantiseLinear) -> QuantiseLinear:
    """The layers of `quantise`, with activations in int8 (`model.activation_quantization`)."""

    def quantise_linear(weight: torch.Tensor, bias: torch.Tensor | None, scheme: str) -> PackedLinear:
        return replace(quantise(weight, bias, scheme), rounds_rows=True)

    return quantise_linear


def repack_linear_reference(packed: PackedLinear) -> PackedLinear:
    """torch reads weights in the order in which it has packed them."""
    return packed


def linear_reference(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """x: [T, in_features]. Returns x @ weight.T + bias, [T, out_features] in x's dtype."""
    if packed.pieces:
        return torch.cat([linear_reference(x, piece) for piece in packed.pieces], dim=1)
    if packed.grouped is not None:
        return grouped_linear_reference(x, packed.grouped, packed.bias)
    if packed.scales is not None:
        rows = rounded_rows_reference(x) if packed.rounds_rows else x
        out = quantised_linear_reference(rows, packed.weight, packed.scales, packed.bias, packed.out_features)
        return out.to(x.dtype)
    return F.linear(x, packed.weight, packed.bias)


def embed_reference(token_ids: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """Rows of the weight, so that an embedding tied to the output layer is stored once.

    token_ids: [T] int64. Returns [T, in_features] in `packed.dtype`.
    """
    if packed.grouped is not None:
        return grouped_rows_reference(token_ids, packed.grouped, packed.dtype)
    if packed.scales is not None:
        return quantised_rows_reference(token_ids, packed.weight, packed.scales, packed.in_features, packed.dtype)
    return F.embedding(token_ids, packed.weight)
