"""Common to all launches: whether the interpreter runs, the number of warps, and when a kernel may start.

Programmatic dependent launch (compute capability 9.0 and later, PTX griddepcontrol, Triton from 3.4 on): a kernel that
is launched with it may start when each program of the previous kernel on the stream has triggered it or has ended,
before the writes of that kernel are visible. Waiting blocks until all programs of that kernel have ended and their
writes are visible. The rules that make this correct for any order of kernels, inside and outside graphs:

1. Every program of every kernel that is launched this way waits, once, on every path. So when a kernel has ended, all
   kernels before it have ended: a successor that waits for it, or has an ordinary launch, waits for all of them.
2. Before it waits, a program reads weights and nothing else. It writes nothing: an earlier kernel may still read the
   memory of its results, since memory is freed and allocated again in the order of launches.
3. It triggers after it has waited. So a program starts only when all kernels except the previous one have ended, at
   most one kernel waits while another runs, and weights that a kernel has just copied are visible unless that kernel is
   the previous one: code that loads weights into a running engine synchronises before the next step.

STOKER_EARLY_STARTS=0 uses ordinary launches: an error that remains is not caused by an early start.

Kernels of torch and its libraries keep the ordinary launch. In a kernel with an ordinary launch a wait returns
immediately, and a trigger without a waiting kernel has no effect.
"""

from __future__ import annotations

import os
from functools import cache

import triton
import triton.language as tl
from triton.runtime import driver

_ELEMENTS_PER_WARP = 512  # of a row of one program: 16 a thread, two loads of 16 bytes in bfloat16
_DEPENDENT_FROM = 90  # compute capability, times ten
_VARIABLE = "STOKER_EARLY_STARTS"


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU."""
    return bool(triton.knobs.runtime.interpret)


def num_warps(width: int) -> int:
    """Number of warps of a program that processes `width` elements, a power of two."""
    return min(16, max(1, width // _ELEMENTS_PER_WARP))


@cache
def dependent() -> dict[str, bool]:
    """Launch options by which a kernel may start early, and by which it knows that it must wait."""
    if not is_interpreted() and os.environ.get(_VARIABLE) != "0":
        target = driver.active.get_current_target()
        if target.backend == "cuda" and target.arch >= _DEPENDENT_FROM:
            return {"IS_DEPENDENT": True, "launch_pdl": True}
    return {"IS_DEPENDENT": False}


def early_starts() -> str:
    """Text for the start-up table."""
    if dependent()["IS_DEPENDENT"]:
        return "a kernel starts while the previous one ends (programmatic dependent launch)"
    if is_interpreted():
        return "kernels run one after the other: Triton's interpreter"
    if os.environ.get(_VARIABLE) == "0":
        return f"kernels run one after the other: {_VARIABLE}=0"
    return f"kernels run one after the other: an early start needs compute capability {_DEPENDENT_FROM / 10}"


@triton.jit
def wait(IS_DEPENDENT: tl.constexpr):
    """Waits for all earlier kernels, then lets the next one start. See the rules above."""
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
