"""Plans: which row a program works on. The tiles of all rows are numbered; a plan has the number where each row ends.

A plan depends on the step and on little else, so the first layer computes it and the others reuse it. Each plan is
allocated separately, so plans of one step never share memory, and a graph that is captured meanwhile contains both the
allocation and the launch that fills it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
import triton
import triton.language as tl

from ..paged_attention import AttentionStep


@triton.jit
def row_of(ends, num_rows, unit, per_tile):
    """The row that has tile `unit`. ends: [num_rows + 1], the number of tiles before each row, and of all."""
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
    """The number of tiles before each row, and of all, [R + 1] int32, computed once per step.

    key: everything the plan depends on besides the step. make: launches the kernel that fills the tensor; its second
    argument is a power of two, at least R.
    """
    ends: torch.Tensor | None = step.plans.get(key)
    if ends is None:
        num_rows = step.context_lens.shape[0]
        ends = torch.empty(num_rows + 1, dtype=torch.int32, device=step.context_lens.device)
        make(ends, max(32, triton.next_power_of_2(num_rows)))
        step.plans[key] = ends
    return ends
