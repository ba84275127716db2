from __future__ import annotations

import pytest
import torch

from stoker.engine.kernels.top_tokens import top_tokens_reference


@pytest.mark.parametrize(
    ("vocab_size", "count"), [(1, 1), (7, 3), (7, 7), (640, 1), (4096, 9), (4100, 15), (9000, 2000)]
)
def test_top_tokens_equal_those_of_a_stable_sort(vocab_size: int, count: int):
    """Logits are rounded to a few values, so that most of them tie; the smaller id comes first."""
    logits = (torch.randn(3, vocab_size, generator=torch.Generator().manual_seed(count)) * 3).round()
    logits[1] *= -1.0
    values, ids = top_tokens_reference(logits, count)
    expected = logits.sort(dim=-1, descending=True, stable=True)
    assert ids.tolist() == expected.indices[:, :count].tolist()
    assert torch.equal(values, expected.values[:, :count])


def test_forbidden_tokens_come_last():
    logits = torch.tensor([[-torch.inf, 1.0, -torch.inf, -2.0]])
    values, ids = top_tokens_reference(logits, 4)
    assert ids.tolist() == [[1, 3, 0, 2]]
    assert values.tolist() == [[1.0, -2.0, -torch.inf, -torch.inf]]
