"""Linear layers and embeddings over a checkpoint's own codes (packed_codes.py).

Few tokens are bound by reading the codes once, and by the instructions that make numbers of them: the inputs are split
among programs, whose sums a second kernel adds in a fixed order. One or two tokens are multiplied on ordinary cores,
up to 16 on tensor cores, for which a tile of the weight is dequantised in registers to x's dtype. For more tokens the
weight is dequantised into memory, a part at a time, and a library multiplies. Floors of a matrix of 4096 x 4096: 8.9 MB
with GPTQ's 4 bits in groups of 128, 9.7 MB with Q4_K, 13.8 MB with Q6_K, 17.3 MB with fp8 and scales of 128 x 128; in
bfloat16 it is 33.6 MB.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..packed_codes import PackedCodes
from .gemv import MAX_TOKENS as MOST_OF_ONE
from .launch import dependent, is_interpreted, wait

FEW_TOKENS = 16  # rows of the smallest product of tensor cores
_MAX_SPLITS = 16
_EMBEDDED_PAIRS = 1024  # of one program
_DEQUANTISED_BYTES = 1 << 27  # at once


class Tile(NamedTuple):
    """Tile of a program for few tokens."""

    outputs: int
    pairs: int  # of inputs, at once
    warps: int
    programs: int  # that a layer is split into, about


ONE, FEW = Tile(4, 512, 2, 1024), Tile(128, 64, 4, 512)


@triton.jit
def _levels_of(codes, levels, first, KIND: tl.constexpr):
    codes = codes.to(tl.int32)
    if KIND == "steps":
        found = _stepped(codes, first, 0)
    elif KIND == "table":
        found = tl.load(levels + codes)
    elif KIND == "e2m1":  # of the bits of float16, whose exponent is 14 larger
        sizes = ((codes & 7) << 9).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 16384.0
        found = tl.where(codes > 7, -sizes, sizes)
    elif KIND == "e4m3":  # of the bits of float32, whose exponent is 120 larger
        found = ((codes & 127) << 20 | (codes & 128) << 24).to(tl.float32, bitcast=True) * 2.0**120
    else:
        sizes = (codes & 127).to(tl.float32) + first
        found = tl.where(codes > 127, -sizes, sizes)
    return found


@triton.jit
def _stepped(codes, first, SHIFT: tl.constexpr):
    """(codes >> SHIFT) + first, of the bits of 2^(23 - SHIFT) + codes: a conversion takes four times as long as other
    instructions. first: an integer, as all levels that are steps have, so that the difference is exact."""
    ONES: tl.constexpr = 0x4B000000 - (SHIFT << 23)
    return (codes | ONES).to(tl.float32, bitcast=True) - (2.0 ** (23 - SHIFT) - first)


@triton.jit
def _of_groups(values, outers, rows, groups, num_groups, is_there, OUTER: tl.constexpr):
    """[outputs, groups, 1] float32. OUTER: groups that share an outer factor, 0 without."""
    found = tl.load(values + rows * num_groups + groups, mask=is_there, other=0).to(tl.float32)
    if OUTER:
        found *= tl.load(outers + rows * (num_groups // OUTER) + groups // OUTER, mask=is_there, other=0).to(tl.float32)
    return found


@triton.jit
def _factors(
    scales, outers, zeros, minima, outer_minima, outputs, is_output, groups, num_groups,
    OUTER: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_MINIMA: tl.constexpr,
):  # fmt: skip
    """Factors of each group, [outputs, groups, 1] float32. An element is (level - zero) * scale - minimum."""
    rows, groups = outputs.to(tl.int64)[:, None, None], groups[None, :, None]
    is_there = is_output[:, None, None] & (groups < num_groups)
    scale = _of_groups(scales, outers, rows, groups, num_groups, is_there, OUTER)
    zero, minimum = 0.0, 0.0
    if HAS_ZEROS:
        zero = _of_groups(zeros, zeros, rows, groups, num_groups, is_there, 0)
    if HAS_MINIMA:
        minimum = _of_groups(minima, outer_minima, rows, groups, num_groups, is_there, OUTER)
    return scale, zero, minimum


@triton.jit
def _levels(
    codes, upper, levels, first, outputs, is_output, groups, places, num_groups,
    BITS: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The levels of two tiles [outputs, groups, places] float32: of the first and the second half of each group."""
    HALF: tl.constexpr = GROUP // 2
    rows, groups, places = outputs.to(tl.int64)[:, None, None], groups[None, :, None], places[None, None, :]
    is_code = is_output[:, None, None] & (groups < num_groups) & (places < HALF)
    if BITS == 8:
        at = codes + rows * (num_groups * GROUP) + groups * GROUP + places
        lower = tl.load(at, mask=is_code, other=0)
        higher = tl.load(at + HALF, mask=is_code, other=0)
    else:
        at = codes + rows * (num_groups * HALF) + groups * HALF + places
        both = tl.load(at, mask=is_code, other=0)
        if BITS == 4 and KIND == "steps":
            both = both.to(tl.int32)
            return _stepped(both & 15, first, 0), _stepped(both & 240, first, 4)
        lower, higher = both & 15, both >> 4
    if BITS == 6:
        QUARTER: tl.constexpr = GROUP // 4
        of_places = groups * QUARTER + places % QUARTER
        bits = tl.load(upper + rows * (num_groups * QUARTER) + of_places, mask=is_code, other=0).to(tl.int32)
        shifts = places // QUARTER * 2
        lower = lower | (bits >> shifts & 3) << 4
        higher = higher | (bits >> shifts + 4 & 3) << 4
    return _levels_of(lower, levels, first, KIND), _levels_of(higher, levels, first, KIND)


@triton.jit
def _numbers(
    codes, upper, levels, first, scales, outers, zeros, minima, outer_minima, outputs, is_output, groups, places,
    num_groups, BITS: tl.constexpr, GROUP: tl.constexpr, OUTER: tl.constexpr, KIND: tl.constexpr,
    HAS_ZEROS: tl.constexpr, HAS_MINIMA: tl.constexpr,
):  # fmt: skip
    """Compute _levels, and apply the factors of each group."""
    ones, others = _levels(
        codes, upper, levels, first, outputs, is_output, groups, places, num_groups, BITS, GROUP, KIND
    )
    scale, zero, minimum = _factors(
        scales,
        outers,
        zeros,
        minima,
        outer_minima,
        outputs,
        is_output,
        groups,
        num_groups,
        OUTER,
        HAS_ZEROS,
        HAS_MINIMA,
    )
    if HAS_ZEROS:
        ones -= zero
        others -= zero
    ones *= scale
    others *= scale
    if HAS_MINIMA:
        ones -= minimum
        others -= minimum
    return ones, others


@triton.jit
def _values(x, order, tokens, is_token, x_stride, k, is_input, HAS_ORDER: tl.constexpr):
    if HAS_ORDER:
        k = tl.load(order + k, mask=is_input, other=0)
    return tl.load(x + tokens[:, None] * x_stride + k[None, :], mask=is_token[:, None] & is_input[None, :], other=0.0)


@triton.jit(do_not_specialize=["num_tokens"])
def _grouped_linear(
    x, codes, upper, levels, first, scales, outers, zeros, minima, outer_minima, order, bias, out, num_tokens, width,
    num_groups, x_stride, out_stride, steps_of_split, num_steps, BITS: tl.constexpr, GROUP: tl.constexpr,
    OUTER: tl.constexpr, KIND: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_MINIMA: tl.constexpr,
    HAS_ORDER: tl.constexpr, HAS_BIAS: tl.constexpr, TOKENS: tl.constexpr, OUTPUTS: tl.constexpr, GROUPS: tl.constexpr,
    SPAN: tl.constexpr, CHUNKS: tl.constexpr, UPCAST: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A step is SPAN places of GROUPS groups, or one of the CHUNKS of a group that has more. out: the sums of each
    split are [tokens, width]."""
    HALF: tl.constexpr = GROUP // 2
    DEPTH: tl.constexpr = GROUPS * SPAN
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    tokens = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    split = tl.program_id(2)
    is_token, is_output = tokens < num_tokens, outputs < width
    sums = tl.zeros([TOKENS, OUTPUTS], tl.float32)
    wait(IS_DEPENDENT)
    begin = split * steps_of_split
    for step in range(begin, tl.minimum(begin + steps_of_split, num_steps)):
        groups = step // CHUNKS * GROUPS + tl.arange(0, GROUPS)
        places = step % CHUNKS * SPAN + tl.arange(0, SPAN)
        ones, others = _numbers(
            codes, upper, levels, first, scales, outers, zeros, minima, outer_minima, outputs, is_output, groups,
            places, num_groups, BITS, GROUP, OUTER, KIND, HAS_ZEROS, HAS_MINIMA,
        )  # fmt: skip
        k = tl.reshape(groups[:, None] * GROUP + places[None, :], [DEPTH])
        is_input = tl.reshape((groups < num_groups)[:, None] & (places < HALF)[None, :], [DEPTH])
        lower = _values(x, order, tokens, is_token, x_stride, k, is_input, HAS_ORDER)
        higher = _values(x, order, tokens, is_token, x_stride, k + HALF, is_input, HAS_ORDER)
        ones = tl.reshape(ones, [OUTPUTS, DEPTH]).to(x.dtype.element_ty)
        others = tl.reshape(others, [OUTPUTS, DEPTH]).to(x.dtype.element_ty)
        if UPCAST:
            lower, higher = lower.to(tl.float32), higher.to(tl.float32)
            ones, others = ones.to(tl.float32), others.to(tl.float32)
        sums += tl.dot(lower, tl.trans(ones), input_precision="ieee")
        sums += tl.dot(higher, tl.trans(others), input_precision="ieee")
    if HAS_BIAS:
        sums += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    at = out + (split.to(tl.int64) * num_tokens + tokens)[:, None] * out_stride + outputs[None, :]
    tl.store(at, sums.to(out.dtype.element_ty), mask=is_token[:, None] & is_output[None, :])


@triton.jit
def _grouped_gemv(
    x, codes, upper, levels, first, scales, outers, zeros, minima, outer_minima, order, bias, out, num_tokens, width,
    num_groups, x_stride, out_stride, steps_of_split, num_steps, BITS: tl.constexpr, GROUP: tl.constexpr,
    OUTER: tl.constexpr, KIND: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_MINIMA: tl.constexpr,
    HAS_ORDER: tl.constexpr, HAS_BIAS: tl.constexpr, OUTPUTS: tl.constexpr, GROUPS: tl.constexpr, SPAN: tl.constexpr,
    CHUNKS: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Computes _grouped_linear for one token. The programs of other tokens are neighbours: the cache has the codes."""
    HALF: tl.constexpr = GROUP // 2
    token = tl.program_id(0).to(tl.int64)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    split = tl.program_id(2)
    is_output = outputs < width
    sums = tl.zeros([OUTPUTS, GROUPS, SPAN], tl.float32)
    wait(IS_DEPENDENT)
    begin = split * steps_of_split
    for step in range(begin, tl.minimum(begin + steps_of_split, num_steps)):
        groups = step // CHUNKS * GROUPS + tl.arange(0, GROUPS)
        places = step % CHUNKS * SPAN + tl.arange(0, SPAN)
        ones, others = _levels(
            codes, upper, levels, first, outputs, is_output, groups, places, num_groups, BITS, GROUP, KIND
        )
        scale, zero, minimum = _factors(
            scales, outers, zeros, minima, outer_minima, outputs, is_output, groups, num_groups, OUTER, HAS_ZEROS,
            HAS_MINIMA,
        )  # fmt: skip
        k = groups[:, None] * GROUP + places[None, :]
        is_input = (groups < num_groups)[:, None] & (places < HALF)[None, :]
        k_others = k + HALF
        if HAS_ORDER:
            k = tl.load(order + k, mask=is_input, other=0)
            k_others = tl.load(order + k_others, mask=is_input, other=0)
        lower = tl.load(x + token * x_stride + k, mask=is_input, other=0.0).to(tl.float32)[None, :, :]
        higher = tl.load(x + token * x_stride + k_others, mask=is_input, other=0.0).to(tl.float32)[None, :, :]
        products = ones * lower + others * higher
        if HAS_ZEROS:
            products -= zero * (lower + higher)
        sums += scale * products
        if HAS_MINIMA:
            sums -= minimum * (lower + higher)
    total = tl.sum(tl.sum(sums, 2), 1)
    if HAS_BIAS:
        total += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)
    at = out + (split.to(tl.int64) * num_tokens + token) * out_stride + outputs
    tl.store(at, total.to(out.dtype.element_ty), mask=is_output)


@triton.jit
def _add_splits(
    sums, bias, out, size, width, out_stride, SPLITS: tl.constexpr, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """sums: [SPLITS, tokens, width] float32, of `size` elements each."""
    wait(IS_DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    outputs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_output = outputs < width
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(SPLITS):
        total += tl.load(sums + split * size + token * width + outputs, mask=is_output, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)
    tl.store(out + token * out_stride + outputs, total.to(out.dtype.element_ty), mask=is_output)


@triton.jit
def _grouped_rows(
    token_ids, codes, upper, levels, first, scales, outers, zeros, minima, outer_minima, order, out, vocab_size,
    num_groups, BITS: tl.constexpr, GROUP: tl.constexpr, OUTER: tl.constexpr, KIND: tl.constexpr,
    HAS_ZEROS: tl.constexpr, HAS_MINIMA: tl.constexpr, HAS_ORDER: tl.constexpr, HAS_IDS: tl.constexpr,
    GROUPS: tl.constexpr, SPAN: tl.constexpr, CHUNKS: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """token_ids: of the rows; without HAS_IDS the first of rows that follow each other."""
    HALF: tl.constexpr = GROUP // 2
    wait(IS_DEPENDENT)
    row, step = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if HAS_IDS:
        token_id = tl.load(token_ids + row + tl.arange(0, 1))
    else:
        token_id = token_ids + row + tl.arange(0, 1)
    groups = step // CHUNKS * GROUPS + tl.arange(0, GROUPS)
    places = step % CHUNKS * SPAN + tl.arange(0, SPAN)
    is_known = (token_id >= 0) & (token_id < vocab_size)
    ones, others = _numbers(
        codes, upper, levels, first, scales, outers, zeros, minima, outer_minima, token_id, is_known, groups, places,
        num_groups, BITS, GROUP, OUTER, KIND, HAS_ZEROS, HAS_MINIMA,
    )  # fmt: skip
    is_input = (groups < num_groups)[:, None] & (places < HALF)[None, :]
    k = groups[:, None] * GROUP + places[None, :]
    others_k = k + HALF
    if HAS_ORDER:
        k = tl.load(order + k, mask=is_input, other=0)
        others_k = tl.load(order + others_k, mask=is_input, other=0)
    into = out + row * num_groups * GROUP
    tl.store(into + k, tl.reshape(ones, [GROUPS, SPAN]).to(out.dtype.element_ty), mask=is_input)
    tl.store(into + others_k, tl.reshape(others, [GROUPS, SPAN]).to(out.dtype.element_ty), mask=is_input)


def grouped_linear_gpu(
    x: torch.Tensor, weight: PackedCodes, bias: torch.Tensor | None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x @ numbers.T + bias.

    Args:
        x: [T, in], with any stride of rows.
        bias: [out] or None.
        out: [T, out] of x's dtype, with any stride of rows, to write to; None allocates it.
    Returns:
        [T, out] in x's dtype. Numbers are rounded to it at most once; sums are in float32.
    """
    num_tokens, width = len(x), len(weight.codes)
    if out is None:
        out = torch.empty(num_tokens, width, dtype=x.dtype, device=x.device)
    if num_tokens > FEW_TOKENS:
        _dequantised_linear(x, weight, bias, out)
    elif num_tokens:
        _few(x, weight, bias, out, ONE if num_tokens <= MOST_OF_ONE else FEW)
    return out


def grouped_rows_gpu(token_ids: torch.Tensor, weight: PackedCodes, dtype: torch.dtype) -> torch.Tensor:
    """Rows of the matrix: [T, in] in `dtype`. token_ids: [T] int64; an id outside the vocabulary gives zeros."""
    return _rows(token_ids, len(token_ids), weight, dtype, token_ids.device)


def _few(x: torch.Tensor, weight: PackedCodes, bias: torch.Tensor | None, out: torch.Tensor, of: Tile) -> None:
    num_tokens, width = out.shape
    tile = _tile(weight, of.pairs)
    num_steps = _num_steps(weight, tile)
    tiles = triton.cdiv(width, of.outputs)
    splits = min(_MAX_SPLITS, num_steps, max(1, of.programs // tiles))
    steps_of_split = triton.cdiv(num_steps, splits)
    splits = triton.cdiv(num_steps, steps_of_split)
    sums = out if splits == 1 else torch.empty(splits, num_tokens, width, dtype=torch.float32, device=x.device)
    kernel, grid, products = (
        (_grouped_gemv, (num_tokens, tiles, splits), {})
        if num_tokens <= MOST_OF_ONE
        else (_grouped_linear, (tiles, 1, splits), {"TOKENS": FEW_TOKENS, "UPCAST": is_interpreted()})
    )
    kernel[grid](
        x, *_tensors(weight), weight.order, bias, sums, num_tokens, width, _num_groups(weight), x.stride(0),
        sums.stride(-2), steps_of_split, num_steps, HAS_ORDER=weight.order is not None,
        HAS_BIAS=bias is not None and splits == 1, OUTPUTS=of.outputs, num_warps=of.warps, **products,
        **_constants(weight), **tile, **dependent(),
    )  # fmt: skip
    if splits > 1:
        block = 256
        _add_splits[(num_tokens, triton.cdiv(width, block))](
            sums, bias, out, num_tokens * width, width, out.stride(0), SPLITS=splits, BLOCK=block,
            HAS_BIAS=bias is not None, **dependent(),
        )  # fmt: skip


def _dequantised_linear(x: torch.Tensor, weight: PackedCodes, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    width = len(weight.codes)
    step = max(1, _DEQUANTISED_BYTES // (x.shape[1] * x.element_size()))
    for begin in range(0, width, step):
        part = slice(begin, min(begin + step, width))
        numbers = _rows(begin, part.stop - begin, weight, x.dtype, x.device)
        torch.mm(x, numbers.T, out=out[:, part])
    if bias is not None:
        out += bias


def _rows(
    first: torch.Tensor | int, count: int, weight: PackedCodes, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """[count, in]. first: ids of the rows, or the first of rows that follow each other."""
    num_groups = _num_groups(weight)
    out = torch.empty(count, num_groups * weight.group, dtype=dtype, device=device)
    tile = _tile(weight, _EMBEDDED_PAIRS)
    if count:
        _grouped_rows[(count, _num_steps(weight, tile))](
            first, *_tensors(weight), weight.order, out, len(weight.codes), num_groups,
            HAS_ORDER=weight.order is not None, HAS_IDS=isinstance(first, torch.Tensor), **_constants(weight), **tile,
            **dependent(),
        )  # fmt: skip
    return out


def _tile(weight: PackedCodes, pairs: int) -> dict[str, int]:
    """How `pairs` places, a power of two, are spread over groups."""
    half = weight.group // 2
    span = min(pairs, triton.next_power_of_2(half))
    return {"GROUPS": pairs // span, "SPAN": span, "CHUNKS": triton.cdiv(half, span)}


def _num_steps(weight: PackedCodes, tile: dict[str, int]) -> int:
    return int(triton.cdiv(_num_groups(weight), tile["GROUPS"])) * tile["CHUNKS"]


def _num_groups(weight: PackedCodes) -> int:
    return weight.scales.values.shape[1]


def _tensors(weight: PackedCodes) -> tuple[torch.Tensor | float | None, ...]:
    scales, minima = weight.scales, weight.minima
    offsets = (None, None) if minima is None else (minima.values, minima.outer)
    return weight.codes, weight.upper, weight.levels, weight.first, scales.values, scales.outer, weight.zeros, *offsets


def _constants(weight: PackedCodes) -> dict[str, int | str | bool]:
    outer = weight.scales.outer
    return {
        "BITS": weight.bits,
        "GROUP": weight.group,
        "OUTER": 0 if outer is None else _num_groups(weight) // outer.shape[1],
        "KIND": weight.kind,
        "HAS_ZEROS": weight.zeros is not None,
        "HAS_MINIMA": weight.minima is not None,
    }
