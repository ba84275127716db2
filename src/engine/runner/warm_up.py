"""The first steps of a runner: what is initialised lazily is initialised before the first request."""

from __future__ import annotations

import numpy as np

from ...config import Resolved
from ..api import PoolingParams, RequestInputs, SamplingParams
from ..step.plan import Admission, Int32, StepPlan
from .kv_cache import KVCache


def warm_up_plans(resolved: Resolved, cache: KVCache) -> list[StepPlan]:
    """A short prompt, and one token after it if the model generates tokens; none if no prompt fits."""
    block_size, model_len = resolved.cache.block_size, resolved.model.max_model_len
    num_groups = cache.groups.num_groups
    num_blocks = min(cache.num_blocks // num_groups, -(-model_len // block_size), 4)
    most = min(model_len - 1, resolved.scheduler.max_num_batched_tokens, 63)
    spec = resolved.model_spec
    prompt = [0] * min(num_blocks * block_size - 1, most)
    if not prompt:
        return []
    block_ids = [list(range(group, num_blocks * num_groups, num_groups)) for group in range(num_groups)]
    if not spec.generates:
        tasks = () if spec.pooling is None else tuple(head.task for head in spec.pooling.heads)
        admission = Admission(0, RequestInputs(prompt, PoolingParams(tasks)), block_ids, seed=0)
        return [_one_row_plan(0, [admission], 0, len(prompt), num_groups)]
    admission = Admission(0, RequestInputs(prompt, SamplingParams(temperature=1.0, max_tokens=2)), block_ids, seed=0)
    return [
        _one_row_plan(0, [admission], 0, len(prompt), num_groups),
        _one_row_plan(1, [], len(prompt), 1, num_groups),
    ]


def plan_with_drafts(resolved: Resolved, cache: KVCache, num_rows: int, num_tokens: int) -> StepPlan | None:
    """A step of this number of rows, each with one known token to compute and num_tokens - 1 drafts, after a block of
    others. The last of several rows has a draft less. None if no step can have them."""
    block_size, num_groups = resolved.cache.block_size, cache.groups.num_groups
    num_blocks = 1 + -(-num_tokens // block_size)
    if (
        num_rows * num_blocks * num_groups > cache.num_blocks
        or num_rows > resolved.scheduler.max_num_seqs
        or num_rows * num_tokens > resolved.scheduler.max_num_batched_tokens
        or block_size + num_tokens > resolved.model.max_model_len
    ):
        return None
    inputs = RequestInputs([0] * (block_size + 1), SamplingParams(temperature=0))
    tables = np.arange(num_rows * num_blocks * num_groups).reshape(num_rows, num_blocks, num_groups)
    every = np.ones(num_rows, np.int32)
    counts = every * num_tokens
    if num_rows > 1:
        counts[-1] -= 1  # rows of one length are captured, and those of requests seldom have one
    return StepPlan(
        step=0,
        released_slots=list(range(num_rows)),
        admissions=[Admission(row, inputs, table.T.tolist(), seed=0) for row, table in enumerate(tables)],
        block_slots=every[:0],
        block_ids=every[:0].reshape(0, num_groups),
        slots=np.arange(num_rows, dtype=np.int32),
        num_computed=every * block_size,
        num_tokens=counts,
        num_outputs=counts,
        drafts=[(row, [0] * (count - 1)) for row, count in enumerate(counts.tolist()) if count > 1],
    )


def _one_row_plan(
    step: int, admissions: list[Admission], num_computed: int, num_tokens: int, num_groups: int
) -> StepPlan:
    def column(*values: int) -> Int32:
        return np.array(values, np.int32)

    return StepPlan(
        step=step,
        released_slots=[],
        admissions=admissions,
        block_slots=column(),
        block_ids=column().reshape(0, num_groups),
        slots=column(0),
        num_computed=column(num_computed),
        num_tokens=column(num_tokens),
        num_outputs=column(1),
    )
