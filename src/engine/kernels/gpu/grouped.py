"""Linear layers and embeddings over a checkpoint's own codes (packed_codes.py).

What comes in is x [tokens, inputs] and a packed matrix; what goes out is x @ numbers.T + bias. The number of tokens
decides how the numbers are used (dequantise.py computes them):

    1 or 2       multiplied on ordinary cores                     _grouped_gemv
    up to 16     rounded to x's dtype, and on tensor cores        _grouped_linear
    more         written to memory, a part of the matrix at a time, and a library multiplies

For few tokens, time is limited by reading the codes once and by the instructions that make numbers of them, so the
inputs are split among programs, whose sums _add_splits adds in a fixed order. A program's inputs are taken in steps: a
step is SPAN positions in the halves of GROUPS groups, or one of CHUNKS parts of a group whose half is longer than SPAN.

Floors of a matrix of 4096 x 4096: 8.9 MB with GPTQ's 4 bits in groups of 128, 9.7 MB with Q4_K, 13.8 MB with Q6_K,
17.3 MB with fp8 and scales of 128 x 128; in bfloat16 it is 33.6 MB.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..packed_codes import PackedCodes
from .dequantise import input_ids, load_factors, load_levels, load_numbers
from .gemv import MAX_TOKENS as MAX_GEMV_TOKENS
from .launch import dependent, is_interpreted, wait

FEW_TOKENS = 16  # rows of the smallest product of tensor cores
_MAX_SPLITS = 16
_PAIRS_OF_ROW = 1024  # of inputs, for one program of _grouped_rows
_ADDED_OUTPUTS = 256  # of one program of _add_splits
_DEQUANTISED_BYTES = 1 << 27  # at once


@dataclass(frozen=True, slots=True)
class _Tile:
    """What one program multiplies for few tokens."""

    outputs: int
    pairs: int  # of inputs that share a byte, in one step
    num_warps: int
    num_programs: int  # about this number of programs are launched: smaller matrices have more splits


_GEMV_TILE, _LINEAR_TILE = _Tile(4, 512, 2, 1024), _Tile(128, 64, 4, 512)


@triton.jit
def _of_step(step, GROUPS: tl.constexpr, SPAN: tl.constexpr, CHUNKS: tl.constexpr):
    """The groups of a step, and the positions in the first half of each."""
    return step // CHUNKS * GROUPS + tl.arange(0, GROUPS), step % CHUNKS * SPAN + tl.arange(0, SPAN)


@triton.jit
def _load_inputs(x, order, tokens, is_token, x_stride, k, is_input, HAS_ORDER: tl.constexpr):
    """[tokens, inputs]. order: the input of each column of the matrix."""
    if HAS_ORDER:
        k = tl.load(order + k, mask=is_input, other=0)
    return tl.load(x + tokens[:, None] * x_stride + k[None, :], mask=is_token[:, None] & is_input[None, :], other=0.0)


@triton.jit(do_not_specialize=["num_tokens"])
def _grouped_linear(
    x, codes, upper, levels, first_level, scales, outers, zeros, minima, outer_minima, order, bias, out, num_tokens,
    width, num_groups, x_stride, out_stride, steps_of_split, num_steps, BITS: tl.constexpr, GROUP: tl.constexpr,
    OUTER: tl.constexpr, KIND: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_MINIMA: tl.constexpr,
    HAS_ORDER: tl.constexpr, HAS_BIAS: tl.constexpr, TOKENS: tl.constexpr, OUTPUTS: tl.constexpr, GROUPS: tl.constexpr,
    SPAN: tl.constexpr, CHUNKS: tl.constexpr, UPCAST: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program multiplies a tile of tokens and outputs over the steps of one split. out: [splits, tokens, width]."""
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
        groups, positions = _of_step(step, GROUPS, SPAN, CHUNKS)
        first, second = load_numbers(
            codes, upper, levels, first_level, scales, outers, zeros, minima, outer_minima, outputs, is_output, groups,
            positions, num_groups, BITS, GROUP, OUTER, KIND, HAS_ZEROS, HAS_MINIMA,
        )  # fmt: skip
        k, is_input = input_ids(groups, positions, num_groups, GROUP)
        k, is_input = tl.reshape(k, [DEPTH]), tl.reshape(is_input, [DEPTH])
        x_first = _load_inputs(x, order, tokens, is_token, x_stride, k, is_input, HAS_ORDER)
        x_second = _load_inputs(x, order, tokens, is_token, x_stride, k + HALF, is_input, HAS_ORDER)
        first = tl.reshape(first, [OUTPUTS, DEPTH]).to(x.dtype.element_ty)
        second = tl.reshape(second, [OUTPUTS, DEPTH]).to(x.dtype.element_ty)
        if UPCAST:
            x_first, x_second = x_first.to(tl.float32), x_second.to(tl.float32)
            first, second = first.to(tl.float32), second.to(tl.float32)
        sums += tl.dot(x_first, tl.trans(first), input_precision="ieee")
        sums += tl.dot(x_second, tl.trans(second), input_precision="ieee")
    if HAS_BIAS:
        sums += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    address = out + (split.to(tl.int64) * num_tokens + tokens)[:, None] * out_stride + outputs[None, :]
    tl.store(address, sums.to(out.dtype.element_ty), mask=is_token[:, None] & is_output[None, :])


@triton.jit
def _grouped_gemv(
    x, codes, upper, levels, first_level, scales, outers, zeros, minima, outer_minima, order, bias, out, num_tokens,
    width, num_groups, x_stride, out_stride, steps_of_split, num_steps, BITS: tl.constexpr, GROUP: tl.constexpr,
    OUTER: tl.constexpr, KIND: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_MINIMA: tl.constexpr,
    HAS_ORDER: tl.constexpr, HAS_BIAS: tl.constexpr, OUTPUTS: tl.constexpr, GROUPS: tl.constexpr, SPAN: tl.constexpr,
    CHUNKS: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Computes _grouped_linear for one token. The programs of other tokens are neighbours: the cache has the codes.

    Zeros and minima are applied to products of a group rather than to each number.
    """
    HALF: tl.constexpr = GROUP // 2
    token = tl.program_id(0).to(tl.int64)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    split = tl.program_id(2)
    is_output = outputs < width
    sums = tl.zeros([OUTPUTS, GROUPS, SPAN], tl.float32)
    wait(IS_DEPENDENT)
    begin = split * steps_of_split
    for step in range(begin, tl.minimum(begin + steps_of_split, num_steps)):
        groups, positions = _of_step(step, GROUPS, SPAN, CHUNKS)
        first, second = load_levels(
            codes, upper, levels, first_level, outputs, is_output, groups, positions, num_groups, BITS, GROUP, KIND
        )
        scale, zero, minimum = load_factors(
            scales, outers, zeros, minima, outer_minima, outputs, is_output, groups, num_groups, OUTER, HAS_ZEROS,
            HAS_MINIMA,
        )  # fmt: skip
        k, is_input = input_ids(groups, positions, num_groups, GROUP)
        k_second = k + HALF
        if HAS_ORDER:
            k = tl.load(order + k, mask=is_input, other=0)
            k_second = tl.load(order + k_second, mask=is_input, other=0)
        x_first = tl.load(x + token * x_stride + k, mask=is_input, other=0.0).to(tl.float32)[None, :, :]
        x_second = tl.load(x + token * x_stride + k_second, mask=is_input, other=0.0).to(tl.float32)[None, :, :]
        products = first * x_first + second * x_second
        if HAS_ZEROS:
            products -= zero * (x_first + x_second)
        sums += scale * products
        if HAS_MINIMA:
            sums -= minimum * (x_first + x_second)
    total = tl.sum(tl.sum(sums, 2), 1)
    if HAS_BIAS:
        total += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)
    address = out + (split.to(tl.int64) * num_tokens + token) * out_stride + outputs
    tl.store(address, total.to(out.dtype.element_ty), mask=is_output)


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
    row_ids, codes, upper, levels, first_level, scales, outers, zeros, minima, outer_minima, order, out, num_rows,
    num_groups, BITS: tl.constexpr, GROUP: tl.constexpr, OUTER: tl.constexpr, KIND: tl.constexpr,
    HAS_ZEROS: tl.constexpr, HAS_MINIMA: tl.constexpr, HAS_ORDER: tl.constexpr, HAS_IDS: tl.constexpr,
    GROUPS: tl.constexpr, SPAN: tl.constexpr, CHUNKS: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program writes one step of one row of numbers.

    row_ids: which rows of the matrix; without HAS_IDS the first of consecutive rows. num_rows: of the matrix.
    """
    HALF: tl.constexpr = GROUP // 2
    wait(IS_DEPENDENT)
    target, step = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if HAS_IDS:
        row = tl.load(row_ids + target + tl.arange(0, 1))
    else:
        row = row_ids + target + tl.arange(0, 1)
    groups, positions = _of_step(step, GROUPS, SPAN, CHUNKS)
    is_row = (row >= 0) & (row < num_rows)
    first, second = load_numbers(
        codes, upper, levels, first_level, scales, outers, zeros, minima, outer_minima, row, is_row, groups, positions,
        num_groups, BITS, GROUP, OUTER, KIND, HAS_ZEROS, HAS_MINIMA,
    )  # fmt: skip
    k, is_input = input_ids(groups, positions, num_groups, GROUP)
    k_second = k + HALF
    if HAS_ORDER:
        k = tl.load(order + k, mask=is_input, other=0)
        k_second = tl.load(order + k_second, mask=is_input, other=0)
    into = out + target * num_groups * GROUP
    tl.store(into + k, tl.reshape(first, [GROUPS, SPAN]).to(out.dtype.element_ty), mask=is_input)
    tl.store(into + k_second, tl.reshape(second, [GROUPS, SPAN]).to(out.dtype.element_ty), mask=is_input)


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
        _few_tokens_linear(x, weight, bias, out)
    return out


def grouped_rows_gpu(token_ids: torch.Tensor, weight: PackedCodes, dtype: torch.dtype) -> torch.Tensor:
    """Rows of the matrix: [T, in] in `dtype`. token_ids: [T] int64; an id outside the vocabulary gives zeros."""
    return _rows(token_ids, len(token_ids), weight, dtype, token_ids.device)


def _few_tokens_linear(x: torch.Tensor, weight: PackedCodes, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    num_tokens, width = out.shape
    is_gemv = num_tokens <= MAX_GEMV_TOKENS
    tile = _GEMV_TILE if is_gemv else _LINEAR_TILE
    of_steps = _constants_of_steps(weight, tile.pairs)
    num_steps = _num_steps(weight, of_steps)
    num_tiles = triton.cdiv(width, tile.outputs)
    wanted_splits = min(_MAX_SPLITS, num_steps, max(1, tile.num_programs // num_tiles))
    steps_of_split = triton.cdiv(num_steps, wanted_splits)
    splits = triton.cdiv(num_steps, steps_of_split)
    is_split = splits > 1
    sums = torch.empty(splits, num_tokens, width, dtype=torch.float32, device=x.device) if is_split else out
    constants = {**_constants(weight), **of_steps, "OUTPUTS": tile.outputs, "num_warps": tile.num_warps}
    if is_gemv:
        kernel, grid = _grouped_gemv, (num_tokens, num_tiles, splits)
    else:
        kernel, grid = _grouped_linear, (num_tiles, 1, splits)
        constants |= {"TOKENS": FEW_TOKENS, "UPCAST": is_interpreted()}
    kernel[grid](
        x, *_tensors(weight), bias, sums, num_tokens, width, _num_groups(weight), x.stride(0), sums.stride(-2),
        steps_of_split, num_steps, HAS_BIAS=bias is not None and not is_split, **constants, **dependent(),
    )  # fmt: skip
    if is_split:
        _add_splits[(num_tokens, triton.cdiv(width, _ADDED_OUTPUTS))](
            sums, bias, out, num_tokens * width, width, out.stride(0), SPLITS=splits, BLOCK=_ADDED_OUTPUTS,
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
    row_ids: torch.Tensor | int, count: int, weight: PackedCodes, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """[count, in]. row_ids: of these rows, or the first of consecutive rows."""
    num_groups = _num_groups(weight)
    out = torch.empty(count, num_groups * weight.group, dtype=dtype, device=device)
    of_steps = _constants_of_steps(weight, _PAIRS_OF_ROW)
    if count:
        _grouped_rows[(count, _num_steps(weight, of_steps))](
            row_ids, *_tensors(weight), out, len(weight.codes), num_groups,
            HAS_IDS=isinstance(row_ids, torch.Tensor), **_constants(weight), **of_steps, **dependent(),
        )  # fmt: skip
    return out


def _constants_of_steps(weight: PackedCodes, pairs: int) -> dict[str, int]:
    """What a step has, when it has `pairs` pairs of inputs, a power of two."""
    half = weight.group // 2
    span = min(pairs, triton.next_power_of_2(half))
    return {"GROUPS": pairs // span, "SPAN": span, "CHUNKS": triton.cdiv(half, span)}


def _num_steps(weight: PackedCodes, of_steps: dict[str, int]) -> int:
    return int(triton.cdiv(_num_groups(weight), of_steps["GROUPS"])) * of_steps["CHUNKS"]


def _num_groups(weight: PackedCodes) -> int:
    return weight.scales.values.shape[1]


def _tensors(weight: PackedCodes) -> tuple[torch.Tensor | float | None, ...]:
    """The parameters of a kernel from `codes` to `order`."""
    scales, minima = weight.scales, weight.minima
    of_minima = (None, None) if minima is None else (minima.values, minima.outer)
    of_codes = (weight.codes, weight.upper, weight.levels, weight.first)
    return (*of_codes, scales.values, scales.outer, weight.zeros, *of_minima, weight.order)


def _constants(weight: PackedCodes) -> dict[str, int | str | bool]:
    outer = weight.scales.outer
    return {
        "BITS": weight.bits,
        "GROUP": weight.group,
        "OUTER": 0 if outer is None else _num_groups(weight) // outer.shape[1],
        "KIND": weight.kind,
        "HAS_ZEROS": weight.zeros is not None,
        "HAS_MINIMA": weight.minima is not None,
        "HAS_ORDER": weight.order is not None,
    }
