"""Ops that take penalties use the logits that the reference computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.slow_cases import slow

from stoker.engine.kernels import KernelSet, select_kernels
from stoker.engine.kernels.noise import row_keys
from stoker.engine.kernels.penalise import Penalties, penalised

SLOTS = 9


@pytest.fixture(scope="module", params=["auto", slow("portable")])
def kernels(request: pytest.FixtureRequest) -> KernelSet:
    return select_kernels("cpu", torch.float32, 64, features=request.param)


def penalties(vocab_size: int, generator: torch.Generator) -> Penalties:
    """Penalties of five rows: two have no tokens, one has a single token."""

    def column() -> torch.Tensor:
        return torch.rand(5, generator=generator) * 2

    return Penalties(
        slots=torch.randperm(SLOTS, generator=generator)[:5],
        lengths=torch.tensor([0, 1, 300, 77, 0]),
        repetition=column() + 0.1,
        frequency=column() - 1,
        presence=column() - 1,
        token_table=torch.randint(0, vocab_size, (SLOTS, 301), generator=generator, dtype=torch.int32),
        counts=torch.randint(0, 3, (SLOTS, vocab_size), generator=generator, dtype=torch.int32),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [1, 50, 5001])
def test_ops_use_logits_with_penalties(kernels: KernelSet, vocab_size: int, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(vocab_size)
    logits = (torch.randn(5, vocab_size, generator=generator) * 3).to(dtype)
    changes, before = penalties(vocab_size, generator), logits.clone()
    expected = penalised(logits, changes)
    assert not torch.equal(expected, logits.float())
    halves, zeros, keys = torch.full((5,), 0.5), torch.zeros(5), row_keys(np.arange(5, dtype=np.uint64), np.full(5, 9))
    for columns in (halves, zeros, keys), (zeros, zeros, keys):
        found = kernels.sample_tokens(logits, *columns, penalties=changes)
        assert torch.equal(found, KernelSet().sample_tokens(expected, *columns))
    found = kernels.sample_top_p(logits, halves, zeros, halves, keys, penalties=changes)
    assert torch.equal(found, KernelSet().sample_top_p(expected, halves, zeros, halves, keys))
    for count in {1, max(1, vocab_size // 20), vocab_size}:
        values, ids = kernels.top_tokens(logits, count, penalties=changes)
        torch.testing.assert_close(values, expected.gather(1, ids), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(values, KernelSet().top_tokens(expected, count)[0], rtol=1e-6, atol=1e-6)
    assert torch.equal(logits, before)


def test_penalties_for_another_vocabulary_size_or_number_of_rows_are_refused(kernels: KernelSet):
    changes = penalties(50, torch.Generator())
    for logits in torch.zeros(5, 51), torch.zeros(4, 50):
        with pytest.raises(ValueError, match="penalties for"):
            kernels.top_tokens(logits, 1, penalties=changes)
