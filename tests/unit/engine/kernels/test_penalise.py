"""Penalties in C++ give what their reference gives."""

from __future__ import annotations

import pytest
import torch

from stoker.engine.kernels import KernelSet, select_kernels
from stoker.engine.kernels.penalise import Penalised

SLOTS = 9


@pytest.fixture(scope="module", params=["auto", "portable"])
def kernels(request: pytest.FixtureRequest) -> KernelSet:
    return select_kernels("cpu", torch.float32, 64, features=request.param)


def penalised(vocab_size: int, generator: torch.Generator) -> Penalised:
    """Four of seven rows, the first of them without any token."""

    def column() -> torch.Tensor:
        return torch.rand(4, generator=generator) * 2

    return Penalised(
        rows=torch.tensor([0, 2, 3, 6]),
        slots=torch.randperm(SLOTS, generator=generator)[:4],
        lengths=torch.tensor([0, 1, 300, 77]),
        repetition=column() + 0.1,
        frequency=column() - 1,
        presence=column() - 1,
        token_table=torch.randint(0, vocab_size, (SLOTS, 301), generator=generator, dtype=torch.int32),
        counts=torch.randint(0, 3, (SLOTS, vocab_size), generator=generator, dtype=torch.int32),
    )


@pytest.mark.parametrize("vocab_size", [1, 50, 5001])
def test_penalties_equal_the_reference(kernels: KernelSet, vocab_size: int):
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(7, vocab_size, generator=generator) * 3
    changes = penalised(vocab_size, generator)
    expected = logits.clone()
    KernelSet().penalise(expected, changes)
    found = logits.clone()
    kernels.penalise(found, changes)
    assert not torch.equal(found, logits)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_counts_of_another_vocabulary_are_refused(kernels: KernelSet):
    with pytest.raises(ValueError, match="counts"):
        kernels.penalise(torch.zeros(7, 51), penalised(50, torch.Generator()))
