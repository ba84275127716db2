"""What launches have in common: whether the interpreter runs, and how many warps a program of some width takes."""

from __future__ import annotations

import triton

_NUMBERS_PER_WARP = 512  # of a row that one program goes over: 16 a thread, two loads of 16 bytes in bfloat16


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU."""
    return bool(triton.knobs.runtime.interpret)


def num_warps(width: int) -> int:
    """For a program that holds `width` numbers, a power of two."""
    return min(16, max(1, width // _NUMBERS_PER_WARP))
