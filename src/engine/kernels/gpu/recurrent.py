"""Common to the kernels with a state per sequence: launches, the row of a program, decays.

A program keeps its columns of a head's state in registers over all tokens of its row, so that a step reads and writes
the state once. With one token a row there is hardly anything else to read: that is the floor, in Qwen3-Next 2 MiB read
and 2 MiB written by a row in a layer. Columns do not depend on each other: a head's columns are divided among programs,
in blocks of 128 bytes, so that a single row of Qwen3-Next has 128 programs.

A row of few tokens takes them one by one, a longer row in chunks, by products of matrices: another kernel, since it
needs more registers. The device reads which rows these are, each kernel leaves the rows of the other unchanged, and
grids depend only on the number of rows. A row with slot -1 is padding: nothing is read or written.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from ..recurrent_step import RecurrentStep
from .attention_tile import PRECISION

FEW: tl.constexpr = tl.constexpr(8)  # tokens of a row that are taken one by one; a chunk has work for CHUNK tokens
CHUNK: tl.constexpr = tl.constexpr(16)  # tokens that are multiplied as matrices, the least side of a product
PART: tl.constexpr = tl.constexpr(32)  # rows of the state, in one warp of a program with chunks


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch of one kernel of a step."""

    is_chunked: bool
    width: int  # rows of the state, a multiple of PART
    columns: int  # of the state, in one program
    warps: int


def launches(step: RecurrentStep, tokens: int, state_rows: int) -> list[Launch]:
    """Launches for the rows of at most FEW tokens and, if there may be some, for the others. state_rows: of a head."""
    if not tokens or not len(step.seq_slots):
        return []
    width = max(PART.value, triton.next_power_of_2(state_rows))
    warps = width // PART.value
    few = Launch(is_chunked=False, width=width, columns=32, warps=warps)
    # 16 columns: with 32, all that products of three of tf32 need does not fit into registers.
    chunks = Launch(is_chunked=True, width=width, columns=16, warps=warps)
    return [few, chunks] if step.max_query_len > FEW.value else [few]


@triton.jit
def product(left, right):
    """The sum of the products of the parts: [M, N] for [parts, M, PART] and [parts, PART, N], a warp for each part."""
    return tl.sum(tl.dot(left, right, input_precision=PRECISION), 0)


@triton.jit
def load_row(query_start, context_lens, seq_slots, row):
    """First token, number of tokens (0 for padding), slot, and whether the slot holds the sequence's state."""
    slot = tl.load(seq_slots + row).to(tl.int64)
    start = tl.load(query_start + row)
    count = tl.load(query_start + row + 1) - start
    return start.to(tl.int64), tl.where(slot >= 0, count, 0), slot, tl.load(context_lens + row) > count


@triton.jit
def softplus(x):
    """log(1 + exp(x)), within a few roundings also where it is small: log1p(e) is 2 atanh(e / (2 + e)), as a series."""
    e = tl.exp(-tl.abs(x))
    z = e / (2.0 + e)  # at most 1/3
    s = z * z
    series = 1.0 / 7 + s * (1.0 / 9 + s * (1.0 / 11 + s * (1.0 / 13 + s * (1.0 / 15))))
    return tl.maximum(x, 0.0) + 2.0 * z * (1.0 + s * (1.0 / 3 + s * (1.0 / 5 + s * series)))


@triton.jit
def sums_between(values, SIZE: tl.constexpr):
    """[SIZE, SIZE] for values [SIZE] of at most 0: in row t and column s the sum of values s + 1 to t, -inf if s > t.

    Each column has its own sum: a difference of two sums from the beginning would lose small values between large
    ones, and be NaN after -inf.
    """
    places = tl.arange(0, SIZE)
    rows, columns = places[:, None], places[None, :]
    sums = tl.cumsum(tl.where(rows > columns, values[:, None], 0.0), 0)
    return tl.where(rows >= columns, sums, float("-inf"))
