"""The plan of a step: computed by the first layer that needs it, reused by the others, one per window."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from stoker.engine.kernels.attention_variant import AttentionVariant

pytest.importorskip("triton")
from tests.kernels.references import attention_reference

from stoker.engine.kernels.gpu.kernels import PagedAttentionGpu

from .batches import batch

SCALE = 0.25
MIXED = [(1, 70), (5, 80), (1, 3), (0, 0), (66, 66)]


def test_layers_share_a_plan_and_each_window_has_its_own(device: torch.device):
    made, attend = batch(MIXED, device=device), PagedAttentionGpu(device, max_rows=5)
    plans: list[dict] = []
    for own in ((), (40,), (), (7,), (40,), (40, True)):
        found = attend(made.q, made.k_cache, made.v_cache, made, SCALE, AttentionVariant(*own))
        expected = attention_reference(made.q, made.k_cache, made.v_cache, made, SCALE, AttentionVariant(*own))
        torch.testing.assert_close(found.double(), expected, atol=2e-3, rtol=2e-3)
        plans.append(dict(made.plans))
    assert [len(each) for each in plans] == [2, 3, 3, 4, 4, 5]  # prompts have one plan for all windows
    for before, after in pairwise(plans):
        assert all(after[key] is plan for key, plan in before.items())
    assert len({plan.data_ptr() for plan in made.plans.values()}) == 5


def test_more_rows_than_the_workspace_holds_are_refused(device: torch.device):
    made = batch(MIXED, device=device)
    with pytest.raises(ValueError, match="5 rows, but the workspace is for 4"):
        PagedAttentionGpu(device, max_rows=4)(made.q, made.k_cache, made.v_cache, made, SCALE)
