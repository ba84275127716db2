"""What the estimate counts of captured steps."""

from __future__ import annotations

import pytest

from stoker.config.plan.estimate import CAPTURED_ROWS, num_captured_steps
from stoker.engine.collectives import shared_experts
from stoker.engine.runner import sample_head


@pytest.mark.parametrize(("max_num_seqs", "num_replicas"), [(1, 2), (3, 2), (128, 2), (256, 2), (7, 3), (128, 16)])
def test_captured_steps_are_counted(max_num_seqs: int, num_replicas: int):
    """One for each pair of own tokens and tokens of all, rounded up; of steps without own tokens too."""
    found = {
        (own, 1 << (total - 1).bit_length())
        for own in range(min(max_num_seqs, sample_head.LOGIT_ROWS) + 1)
        for total in range(max(own, 1), shared_experts.CAPTURED_ROWS * num_replicas + 1)
    }
    assert num_captured_steps(max_num_seqs, num_replicas) == len(found)


def test_the_limit_is_that_of_the_engine():
    assert CAPTURED_ROWS == shared_experts.CAPTURED_ROWS
