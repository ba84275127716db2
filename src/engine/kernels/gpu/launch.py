"""What launches have in common: whether the interpreter runs, warps, and when a kernel may start.

Programmatic dependent launch (compute capability 9.0 and later, PTX griddepcontrol, Triton from 3.4 on): a kernel that
is launched with it may start when each program of the kernel before it on the stream has triggered it or has ended, be
those writes visible or not. Waiting blocks until all of that kernel's programs have ended and their writes are visible.
The rules by which that is right for any order of kernels, in graphs and out of them:

1. Every program of every kernel that is launched so waits, once, on every path. So when a kernel has ended, all kernels
   before it have: a successor that waits for it, or was launched in the ordinary way, waits for all of them.
2. Before it waits, a program reads weights and nothing else. It writes nothing: the memory of its results may be what
   an earlier kernel still reads, since memory is given back and out again in the order of launches.
3. It triggers after it has waited. So a program starts only when all kernels but the one before it have ended, at most
   one kernel waits beside one that works, and weights that a kernel has just copied are in place unless that kernel is
   the very one before: who loads weights into a running engine synchronises before the next step.

STOKER_EARLY_STARTS=0 launches all in the ordinary way: what goes wrong then as well is not for want of waiting.

Kernels of torch and its libraries between them keep the ordinary launch. A kernel that waits without having been
launched so goes on at once, and a trigger that nothing heeds does nothing.
"""

from __future__ import annotations

import os
from functools import cache

import triton
import triton.language as tl
from triton.runtime import driver

_NUMBERS_PER_WARP = 512  # of a row that one program goes over: 16 a thread, two loads of 16 bytes in bfloat16
_DEPENDENT_FROM = 90  # compute capability, times ten
_VARIABLE = "STOKER_EARLY_STARTS"


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU."""
    return bool(triton.knobs.runtime.interpret)


def num_warps(width: int) -> int:
    """For a program that holds `width` numbers, a power of two."""
    return min(16, max(1, width // _NUMBERS_PER_WARP))


@cache
def dependent() -> dict[str, bool]:
    """What a launch has among its options so that it may start early, and its kernel knows that it must wait."""
    if not is_interpreted() and os.environ.get(_VARIABLE) != "0":
        target = driver.active.get_current_target()
        if target.backend == "cuda" and target.arch >= _DEPENDENT_FROM:
            return {"IS_DEPENDENT": True, "launch_pdl": True}
    return {"IS_DEPENDENT": False}


def early_starts() -> str:
    """For the start-up table."""
    if dependent()["IS_DEPENDENT"]:
        return "kernels start while the one before them ends (programmatic dependent launch)"
    if is_interpreted():
        return "kernels run one after the other: Triton's interpreter"
    if os.environ.get(_VARIABLE) == "0":
        return f"kernels run one after the other: {_VARIABLE}=0"
    return f"kernels run one after the other: an early start needs compute capability {_DEPENDENT_FROM / 10}"


@triton.jit
def wait(IS_DEPENDENT: tl.constexpr):
    """For the kernels before this one, after which the next may start. Rules: above."""
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
