"""Linear layers over weights that are packed once, when the model loads, in the order that the kernel reads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from ...model.quantised import CODES_DEEP, GROUP, MAX_EXCEPTIONS, PANEL_WIDTH, twelve_bit_bytes
from .cpu.library import INT, INT64, POINTER, CpuLibrary, pointer, suffix
from .grouped import Grouped, grouped_linear_reference, grouped_rows_reference, kernels_take, stacked
from .grouped_panels import PANELS_DTYPE, GroupedPacker, set_stride
from .packed_codes import PackedCodes
from .quantised import (
    Integers,
    quantise_reference,
    quantised_linear_reference,
    quantised_rows_reference,
    rounded_rows_reference,
)

logger = logging.getLogger(__name__)


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


CODES = {"int8": torch.int8, "int4": torch.int32}  # type of the tensor of codes
DEPTH_STEPS = {torch.float32: 1, torch.bfloat16: 32}  # in_features must be a multiple; 32 is the depth of a tile
QUANTISED_STEP, ROUNDED_STEP = 32, 64  # in_features of quantised layers, and of those that round rows of x


def pack_linear_cpu(library: CpuLibrary) -> PackLinear:
    """Packs weights into panels, except for types that the level does not multiply and depths that it does not support,
    which torch computes.

    On levels that support it, bfloat16 is compressed to 12 bits per element without loss.
    """
    packs = {
        dtype: library.op("pack", dtype, [POINTER, POINTER, INT64, INT64])
        for dtype in DEPTH_STEPS
        if library.level.multiplies(str(dtype).removeprefix("torch."))
    }
    advise_huge_pages = library.function("advise_huge_pages", [POINTER, INT64])
    pack_twelve_bits = _pack_twelve_bits(library) if library.level.has_twelve_bits else None

    def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
        out_features, in_features = weight.shape
        dtype = weight.dtype
        if dtype not in packs or in_features % DEPTH_STEPS[dtype]:
            return pack_linear_reference(weight, bias)
        weight = weight.contiguous()
        panels = pack_twelve_bits(weight) if pack_twelve_bits is not None and dtype == torch.bfloat16 else None
        if panels is None:
            panels = weight.new_empty(-(-out_features // PANEL_WIDTH) * PANEL_WIDTH, in_features)
            advise_huge_pages(panels.data_ptr(), panels.nbytes)  # before the first write, which allocates the pages
            packs[dtype](pointer(weight, dtype), panels.data_ptr(), out_features, in_features)
        if bias is not None:
            bias = bias.to(dtype).contiguous()
        return PackedLinear(panels, bias, out_features, in_features, is_packed=True, dtype=dtype)

    return pack_linear


def _pack_twelve_bits(library: CpuLibrary) -> Callable[[torch.Tensor], torch.Tensor | None]:
    survey = library.function("survey_twelve_bits", [POINTER] * 3 + [INT64] * 2)
    pack = library.function("pack_twelve_bits", [POINTER] * 4 + [INT64] * 2)
    advise_huge_pages = library.function("advise_huge_pages", [POINTER, INT64])

    def pack_twelve_bits(weight: torch.Tensor) -> torch.Tensor | None:
        """Pack a weight; None if too many elements would be exceptions."""
        out_features, in_features = weight.shape
        first = torch.empty(-(-out_features // PANEL_WIDTH), dtype=torch.uint8)  # of each panel's 15 exponents
        outside = torch.empty(first.shape, dtype=torch.int64)
        source = pointer(weight, torch.bfloat16)
        survey(source, first.data_ptr(), outside.data_ptr(), out_features, in_features)
        num_exceptions = int(outside.sum())
        if num_exceptions > MAX_EXCEPTIONS * weight.numel():
            return None
        starts = (outside + 1).cumsum(0) - (outside + 1)
        panels = torch.empty(twelve_bit_bytes(out_features, in_features, num_exceptions), dtype=torch.uint8)
        advise_huge_pages(panels.data_ptr(), panels.nbytes)
        pack(source, first.data_ptr(), starts.data_ptr(), panels.data_ptr(), out_features, in_features)
        return panels

    return pack_twelve_bits


def repack_linear_cpu(library: CpuLibrary) -> RepackLinear:
    """Return the op for weights that torch has multiplied until now. Quantised ones stay: their order differs."""
    pack_linear = pack_linear_cpu(library)

    def repack_linear(packed: PackedLinear) -> PackedLinear:
        if packed.is_packed or packed.scales is not None or packed.grouped is not None or packed.pieces:
            return packed
        try:
            return pack_linear(packed.weight, packed.bias)
        except (MemoryError, RuntimeError) as error:  # torch's allocator raises RuntimeError
            logger.warning("a weight stays in the order of torch, which is slower: %s", error)
            return packed

    return repack_linear


def quantise_linear_cpu(library: CpuLibrary, *, rounds_rows: bool = False) -> QuantiseLinear:
    """Quantises into panels. torch computes layers whose in_features the kernels do not support.

    rounds_rows: for layers that round rows of x too, whose int8 codes are in another order.
    """
    arguments = [POINTER] * 3 + [INT64] * 2
    calls = {
        (scheme, dtype): library.op(f"quantise_{_layout(scheme, rounds_rows)}", dtype, arguments)
        for scheme in CODES
        for dtype in (torch.float32, torch.bfloat16)
    }
    advise_huge_pages = library.function("advise_huge_pages", [POINTER, INT64])
    step = ROUNDED_STEP if rounds_rows else QUANTISED_STEP

    def quantise_linear(weight: torch.Tensor, bias: torch.Tensor | None, scheme: str) -> PackedLinear:
        out_features, in_features = weight.shape
        if in_features % step or (scheme, weight.dtype) not in calls:
            return replace(quantise_linear_reference(weight, bias, scheme), rounds_rows=rounds_rows)
        weight = weight.contiguous()
        panels = -(-out_features // PANEL_WIDTH)
        if scheme == "int8":
            codes = torch.empty(panels, in_features, PANEL_WIDTH, dtype=torch.int8)
            scales = torch.empty(panels, PANEL_WIDTH)
        else:
            codes = torch.empty(panels, in_features // CODES_DEEP, PANEL_WIDTH, dtype=torch.int32)
            scales = torch.empty(panels, -(-in_features // GROUP), PANEL_WIDTH, dtype=torch.bfloat16)
        advise_huge_pages(codes.data_ptr(), codes.nbytes)
        source = pointer(weight, weight.dtype)
        calls[scheme, weight.dtype](source, codes.data_ptr(), scales.data_ptr(), out_features, in_features)
        if bias is not None:
            bias = bias.contiguous()
        shape = out_features, in_features
        return PackedLinear(
            codes, bias, *shape, is_packed=True, dtype=weight.dtype, scales=scales, rounds_rows=rounds_rows
        )

    return quantise_linear


def pack_grouped_cpu(library: CpuLibrary) -> PackGrouped:
    """Packs codes and scales into panels."""
    packer = GroupedPacker(library)

    def pack_grouped(parts: Sequence[Grouped], bias: torch.Tensor | None, dtype: torch.dtype) -> PackedLinear | None:
        if dtype not in DEPTH_STEPS or not kernels_take(parts[0]):
            return None
        if any(part.shape[0] % PANEL_WIDTH for part in parts[:-1]):
            parts = [stacked(parts)]
        packed = packer.pack(parts)
        bias = None if bias is None else bias.to(dtype).contiguous()
        shape = sum(part.shape[0] for part in parts), parts[0].shape[1]
        return PackedLinear(
            packed.panels, bias, *shape, is_packed=True, dtype=dtype, scales=packed.format, order=packed.order
        )

    return pack_grouped


def pack_integers_cpu(weight: Integers, bias: torch.Tensor | None, dtype: torch.dtype) -> PackedLinear | None:
    """Codes in the order of cpu/integer_products.h: unsigned, four inputs of an output together."""
    out_features, in_features = weight.codes.shape
    if dtype not in DEPTH_STEPS or in_features % ROUNDED_STEP:
        return None
    panels = -(-out_features // PANEL_WIDTH)
    words = torch.full((panels * PANEL_WIDTH, in_features), 128, dtype=torch.uint8)
    torch.bitwise_xor(weight.codes.view(torch.uint8), 128, out=words[:out_features])
    fours = words.view(torch.int32).view(panels, PANEL_WIDTH, in_features // 4).transpose(1, 2).contiguous()
    scales = torch.zeros(panels * PANEL_WIDTH)
    scales[:out_features] = weight.scales
    return PackedLinear(
        fours.view(torch.int8).view(panels, in_features, PANEL_WIDTH),
        None if bias is None else bias.to(dtype).contiguous(),
        out_features,
        in_features,
        is_packed=True,
        dtype=dtype,
        scales=scales.view(panels, PANEL_WIDTH),
        rounds_rows=True,
    )


def join_linear_cpu(pieces: Sequence[PackedLinear]) -> PackedLinear:
    """Computes join_linear_reference; panels write their outputs between the outputs of the others."""
    joined = join_linear_reference(pieces)
    is_packed = all(piece.is_packed for piece in pieces)
    if is_packed:
        for piece in pieces:
            assert piece.scales is not None, "only grouped layers are joined"
            set_stride(piece.scales, joined.out_features)
    return replace(joined, is_packed=is_packed)


def _layout(scheme: str, rounds_rows: bool) -> str:
    """The name of the layout of codes in the library (integer_products.h): only int8's differs."""
    return "bytes" if rounds_rows and scheme == "int8" else scheme


Format = tuple[torch.dtype, torch.dtype, bool]  # of the packed elements, of x, and whether rows of x are rounded


def _format_of(packed: PackedLinear) -> Format:
    return packed.weight.dtype, packed.dtype, packed.rounds_rows


def _functions(library: CpuLibrary, stem: str) -> dict[Format, str]:
    """The name of the library's function for each format: `stem` is linear or panels."""
    names = {(dtype, dtype, False): f"{stem}_{suffix(dtype)}" for dtype in DEPTH_STEPS}
    for scheme, codes in (CODES if library.spec.has_quantised else {}).items():
        for dtype in DEPTH_STEPS:
            names[codes, dtype, False] = f"{stem}_{scheme}_{suffix(dtype)}"
            names[codes, dtype, True] = f"integer_{stem}_{scheme}_{suffix(dtype)}"
    for dtype in DEPTH_STEPS if library.spec.has_quantised else ():
        names[PANELS_DTYPE, dtype, False] = f"{stem}_grouped_{suffix(dtype)}"
    if library.level.has_twelve_bits:
        names[torch.uint8, torch.bfloat16, False] = f"{stem}_twelve_bits"
    return names


def panel_products(library: CpuLibrary) -> Callable[[PackedLinear], int]:
    """The address of the function that multiplies by some panels of a layer, for cpu/experts.cpp."""
    addresses = {each: library.address(name) for each, name in _functions(library, "panels").items()}
    return lambda packed: addresses[_format_of(packed)]


def linear_cpu(library: CpuLibrary, unpacked: Linear = linear_reference) -> Linear:
    """unpacked: computes layers that are not packed."""
    empty = library.memory.empty
    has_scales = {*CODES.values(), PANELS_DTYPE}
    calls = {
        each: library.function(name, [POINTER] * (5 if each[0] in has_scales else 4) + [INT64] * 3)
        for each, name in _functions(library, "linear").items()
    }

    def linear(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        if not packed.is_packed:
            return unpacked(x, packed)
        rows, depth = x.shape
        if depth != packed.in_features:
            raise ValueError(f"x is {tuple(x.shape)}, the layer takes rows of {packed.in_features} elements")
        dtype = packed.dtype
        out = empty(rows, packed.out_features, dtype=dtype)
        at = out.data_ptr()
        for piece in packed.pieces or (packed,):
            arguments = [
                pointer(x, dtype),
                piece.weight.data_ptr(),
                *(() if piece.scales is None else (piece.scales.data_ptr(),)),
                None if piece.bias is None else pointer(piece.bias, dtype),
                at,
                rows,
                piece.out_features,
                depth,
            ]
            calls[_format_of(piece)](*arguments)
            at += piece.out_features * dtype.itemsize
        return out

    return linear


def embed_cpu(library: CpuLibrary) -> Embed:
    schemes = CODES if library.spec.has_quantised else {}
    empty = library.memory.empty
    plain = {dtype: library.op("unpack_rows", dtype, [POINTER] * 3 + [INT64] * 3, INT) for dtype in DEPTH_STEPS}
    quantised = {
        (codes, dtype, rounds_rows): library.op(
            f"unpack_rows_{_layout(scheme, rounds_rows)}", dtype, [POINTER] * 4 + [INT64] * 3, INT
        )
        for scheme, codes in schemes.items()
        for dtype in DEPTH_STEPS
        for rounds_rows in (False, True)
    }
    calls = {(dtype, dtype, False): call for dtype, call in plain.items()} | quantised
    for dtype in DEPTH_STEPS if library.spec.has_quantised else ():
        call = library.op("unpack_rows_grouped", dtype, [POINTER] * 4 + [INT64] * 3, INT)
        calls[PANELS_DTYPE, dtype, False] = call
    if library.level.has_twelve_bits:
        name = "unpack_rows_twelve_bits"
        calls[torch.uint8, torch.bfloat16, False] = library.function(name, [POINTER] * 3 + [INT64] * 3, INT)

    def embed(token_ids: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        if not packed.is_packed:
            return embed_reference(token_ids, packed)
        sizes = (token_ids.shape[0], packed.out_features, packed.in_features)
        ids = pointer(token_ids, torch.int64)
        out = empty(token_ids.shape[0], packed.in_features, dtype=packed.dtype)
        scales = () if packed.scales is None else (packed.scales.data_ptr(),)
        call = calls[packed.weight.dtype, packed.dtype, packed.rounds_rows]
        if call(packed.weight.data_ptr(), *scales, ids, out.data_ptr(), *sizes):
            raise IndexError(f"a token id is not in [0, {packed.out_features})")
        return out

    return embed
