"""Numbers of packed codes in registers: the functions that the kernels of grouped.py share.

What comes in is the tensors of PackedCodes, outputs (rows of the matrix), groups of inputs, and positions in the first
half of a group. What goes out is two tiles [outputs, groups, positions] of float32: the numbers at these positions, and
those of the inputs half a group further, because a byte has the codes of both. With 4 bits and groups of 32 inputs:

    byte 1 = 0xA3  ->  input 1 has code 3, input 17 has code 10
    number = (level of the code - zero) * scale - minimum

Parameters of all functions:
    BITS: 4, 6 or 8 of a code. KIND: how its level is found, as PackedCodes says.
    levels, first_level: the level of each code, in memory; the level of code 0.
    GROUP: inputs that share a scale, a zero and a minimum.
    OUTER: groups that share an outer factor of their scales and minima; 0 without.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_levels(
    codes, upper, levels, first_level, outputs, is_output, groups, positions, num_groups,
    BITS: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The levels in the first and in the second half of each group."""
    HALF: tl.constexpr = GROUP // 2
    rows, groups, positions = outputs.to(tl.int64)[:, None, None], groups[None, :, None], positions[None, None, :]
    is_code = is_output[:, None, None] & (groups < num_groups) & (positions < HALF)
    if BITS == 8:
        address = codes + rows * (num_groups * GROUP) + groups * GROUP + positions
        first = tl.load(address, mask=is_code, other=0)
        second = tl.load(address + HALF, mask=is_code, other=0)
    else:
        address = codes + rows * (num_groups * HALF) + groups * HALF + positions
        both = tl.load(address, mask=is_code, other=0)
        if BITS == 4 and KIND == "steps":
            both = both.to(tl.int32)
            # The upper code stays where it is: its shift would be another instruction.
            return _steps(both & 15, first_level, 0), _steps(both & 240, first_level, 4)
        first, second = both & 15, both >> 4
    if BITS == 6:
        QUARTER: tl.constexpr = GROUP // 4
        byte = groups * QUARTER + positions % QUARTER
        bits = tl.load(upper + rows * (num_groups * QUARTER) + byte, mask=is_code, other=0).to(tl.int32)
        shifts = positions // QUARTER * 2
        first = first | (bits >> shifts & 3) << 4
        second = second | (bits >> shifts + 4 & 3) << 4
    return _levels_of(first, levels, first_level, KIND), _levels_of(second, levels, first_level, KIND)


@triton.jit
def _levels_of(codes, levels, first_level, KIND: tl.constexpr):
    codes = codes.to(tl.int32)
    if KIND == "steps":
        found = _steps(codes, first_level, 0)
    elif KIND == "table":
        found = tl.load(levels + codes)
    elif KIND == "e2m1":  # the code's bits as those of float16, whose exponent is 14 larger
        sizes = ((codes & 7) << 9).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 16384.0
        found = tl.where(codes > 7, -sizes, sizes)
    elif KIND == "e4m3":  # the code's bits as those of float32, whose exponent is 120 larger
        found = ((codes & 127) << 20 | (codes & 128) << 24).to(tl.float32, bitcast=True) * 2.0**120
    else:
        sizes = (codes & 127).to(tl.float32) + first_level
        found = tl.where(codes > 127, -sizes, sizes)
    return found


@triton.jit
def _steps(codes, first_level, SHIFT: tl.constexpr):
    """(codes >> SHIFT) + first_level, without a conversion, which takes four times as long as other instructions.

    The codes become the last bits of the float 2^(23 - SHIFT), which adds them to it. The difference from that float is
    exact, because all levels that are steps are integers.
    """
    BITS_OF_BASE: tl.constexpr = 0x4B000000 - (SHIFT << 23)
    return (codes | BITS_OF_BASE).to(tl.float32, bitcast=True) - (2.0 ** (23 - SHIFT) - first_level)


@triton.jit
def load_factors(
    scales, outers, zeros, minima, outer_minima, outputs, is_output, groups, num_groups,
    OUTER: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_MINIMA: tl.constexpr,
):  # fmt: skip
    """The scale, the zero and the minimum of each group, [outputs, groups, 1] float32."""
    rows, groups = outputs.to(tl.int64)[:, None, None], groups[None, :, None]
    is_group = is_output[:, None, None] & (groups < num_groups)
    scale = _load_factor(scales, outers, rows, groups, num_groups, is_group, OUTER)
    zero, minimum = 0.0, 0.0
    if HAS_ZEROS:
        zero = _load_factor(zeros, zeros, rows, groups, num_groups, is_group, 0)
    if HAS_MINIMA:
        minimum = _load_factor(minima, outer_minima, rows, groups, num_groups, is_group, OUTER)
    return scale, zero, minimum


@triton.jit
def _load_factor(values, outers, rows, groups, num_groups, is_group, OUTER: tl.constexpr):
    found = tl.load(values + rows * num_groups + groups, mask=is_group, other=0).to(tl.float32)
    if OUTER:
        found *= tl.load(outers + rows * (num_groups // OUTER) + groups // OUTER, mask=is_group, other=0).to(tl.float32)
    return found


@triton.jit
def load_numbers(
    codes, upper, levels, first_level, scales, outers, zeros, minima, outer_minima, outputs, is_output, groups,
    positions, num_groups, BITS: tl.constexpr, GROUP: tl.constexpr, OUTER: tl.constexpr, KIND: tl.constexpr,
    HAS_ZEROS: tl.constexpr, HAS_MINIMA: tl.constexpr,
):  # fmt: skip
    """The numbers in the first and in the second half of each group."""
    first, second = load_levels(
        codes, upper, levels, first_level, outputs, is_output, groups, positions, num_groups, BITS, GROUP, KIND
    )
    scale, zero, minimum = load_factors(
        scales, outers, zeros, minima, outer_minima, outputs, is_output, groups, num_groups, OUTER, HAS_ZEROS,
        HAS_MINIMA,
    )  # fmt: skip
    if HAS_ZEROS:
        first -= zero
        second -= zero
    first *= scale
    second *= scale
    if HAS_MINIMA:
        first -= minimum
        second -= minimum
    return first, second


@triton.jit
def input_ids(groups, positions, num_groups, GROUP: tl.constexpr):
    """The inputs at the positions of the first half of each group, [groups, positions], and which of them exist."""
    k = groups[:, None] * GROUP + positions[None, :]
    return k, (groups < num_groups)[:, None] & (positions < GROUP // 2)[None, :]
