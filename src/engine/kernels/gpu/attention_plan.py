"""Which row a program works on: tiles of all rows lie on one line, and a plan tells where each row ends on it.

A plan depends on the step and on little else, so the first layer makes it and the others find it with the step. Each
has memory of its own, as torch gives it in the order of the stream: plans of one step never share it, and a graph that
is captured while one is made holds both its memory and the launch that fills it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
import triton
import triton.language as tl

from ..paged_attention import AttentionStep


@triton.jit
def row_of(ends, num_rows, unit, per_tile):
    """The row in whose tiles `unit` lies. ends: [num_rows + 1], how many tiles come before each row and in all."""
    low = tl.load(ends)  # 0
    high = num_rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(ends + middle) * per_tile <= unit:
            low = middle
        else:
            high = middle
    return low


def planned(step: AttentionStep, key: Hashable, make: Callable[[torch.Tensor, int], object]) -> torch.Tensor:
    """How many tiles come before each row and in all, [R + 1] int32, made once per step.

    key: what the plan depends on beside the step. make: launches what fills the tensor; the second argument is a power
    of two, at least R.
    """
    ends: torch.Tensor | None = step.plans.get(key)
    if ends is None:
        num_rows = step.context_lens.shape[0]
        ends = torch.empty(num_rows + 1, dtype=torch.int32, device=step.context_lens.device)
        make(ends, max(32, triton.next_power_of_2(num_rows)))
        step.plans[key] = ends
    return ends
