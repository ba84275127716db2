"""The rotation of neighbouring pairs, in registers: a pair is in one thread, so that nothing is exchanged."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def turned_pairs(
    values, angles, sign,
    ROWS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, ROTATED: tl.constexpr,
):  # fmt: skip
    """The last ROTATED of DIM elements of each row, rotated.

    values: [ROWS, WIDTH] float32. angles: pointers to the cosines of each row's position, after which are the sines,
    [ROWS or 1, 1]. sign: of the angles, 1.0, or -1.0 to rotate back.
    """
    half: tl.constexpr = ROTATED // 2
    pairs = tl.arange(0, WIDTH // 2) - (DIM - ROTATED) // 2
    is_turned = ((pairs >= 0) & (pairs < half))[None, :]
    cos = tl.load(angles + pairs[None, :], mask=is_turned, other=1.0)
    sin = tl.load(angles + half + pairs[None, :], mask=is_turned, other=0.0) * sign
    first, second = tl.split(tl.reshape(values, [ROWS, WIDTH // 2, 2]))
    return tl.reshape(tl.join(first * cos - second * sin, first * sin + second * cos), [ROWS, WIDTH])


def check_pairs(dim: int, cos_sin: torch.Tensor) -> None:
    """Raises ValueError if the rotated elements are not the last pairs of `dim` elements."""
    rotated = cos_sin.shape[1]
    if dim % 2 or rotated % 2 or rotated > dim:
        raise ValueError(f"{rotated} of {dim} elements cannot be rotated as neighbouring pairs")
