"""Linear layers over weights that are laid out once, when the model loads, in the order the kernel reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .cpu.library import INT, INT64, POINTER, CpuLibrary, pointer


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


PANEL_WIDTH = 16  # cpu/panels.h: outputs of a panel
DEPTH_STEPS = {torch.float32: 1, torch.bfloat16: 32}  # in_features are a multiple; of bfloat16 a tile's depth


def pack_linear_cpu(library: CpuLibrary) -> PackLinear:
    """Packs weights into panels. Of types that the level does not multiply, or of an odd depth, they stay torch's."""
    packs = {
        dtype: library.op("pack", dtype, [POINTER, POINTER, INT64, INT64])
        for dtype in DEPTH_STEPS
        if library.level.multiplies(str(dtype).removeprefix("torch."))
    }
    advise_huge_pages = library.function("advise_huge_pages", [POINTER, INT64])

    def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
        out_features, in_features = weight.shape
        dtype = weight.dtype
        if dtype not in packs or in_features % DEPTH_STEPS[dtype]:
            return pack_linear_reference(weight, bias)
        weight = weight.contiguous()
        panels = weight.new_empty(-(-out_features // PANEL_WIDTH) * PANEL_WIDTH, in_features)
        advise_huge_pages(panels.data_ptr(), panels.nbytes)  # before the first touch: pages are given then
        packs[dtype](pointer(weight, dtype), panels.data_ptr(), out_features, in_features)
        if bias is not None:
            bias = bias.to(dtype).contiguous()
        return PackedLinear(panels, bias, out_features, in_features, is_packed=True)

    return pack_linear


def linear_cpu(library: CpuLibrary) -> Linear:
    calls = {dtype: library.op("linear", dtype, [POINTER] * 4 + [INT64] * 3) for dtype in DEPTH_STEPS}

    def linear(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        if not packed.is_packed:
            return linear_reference(x, packed)
        rows, depth = x.shape
        if depth != packed.in_features:
            raise ValueError(f"x is {tuple(x.shape)}, the layer takes {packed.in_features} numbers a row")
        out = x.new_empty(rows, packed.out_features)
        dtype = packed.weight.dtype
        calls[dtype](
            pointer(x, dtype),
            packed.weight.data_ptr(),
            None if packed.bias is None else packed.bias.data_ptr(),
            out.data_ptr(),
            rows,
            packed.out_features,
            depth,
        )
        return out

    return linear


def embed_cpu(library: CpuLibrary) -> Embed:
    calls = {dtype: library.op("unpack_rows", dtype, [POINTER] * 3 + [INT64] * 3, INT) for dtype in DEPTH_STEPS}

    def embed(token_ids: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        if not packed.is_packed:
            return embed_reference(token_ids, packed)
        out = packed.weight.new_empty(token_ids.shape[0], packed.in_features)
        failed = calls[packed.weight.dtype](
            packed.weight.data_ptr(),
            pointer(token_ids, torch.int64),
            out.data_ptr(),
            token_ids.shape[0],
            packed.out_features,
            packed.in_features,
        )
        if failed:
            raise IndexError(f"a token id is not in [0, {packed.out_features})")
        return out

    return embed
