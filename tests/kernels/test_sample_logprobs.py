"""Log-probabilities on the device, compared with the host's."""

from __future__ import annotations

import pytest
import torch

from stoker.engine.kernels import KernelSet
from stoker.engine.kernels.count_above import count_above_reference
from stoker.engine.kernels.softmax_mass import softmax_mass_reference
from stoker.engine.sampling.logprobs import token_logprobs

from .batches import ALL_DTYPES

pytest.importorskip("triton")

from stoker.engine.kernels.gpu import sample_logprobs as gpu


def logits_of(rows: int, vocab_size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The beginning of longer rows that end in NaN."""
    longer = torch.full((rows, vocab_size + 3), torch.nan, dtype=dtype, device=device)
    longer[:, :vocab_size] = torch.randn(rows, vocab_size, device=device) * 3
    return longer[:, :vocab_size]


@pytest.mark.parametrize("vocab_size", [1, 7, 9001])
@pytest.mark.parametrize("normalise", [True, False])
@ALL_DTYPES
def test_logprobs(device, dtype, vocab_size, normalise):
    logits = logits_of(5, vocab_size, dtype, device)
    if vocab_size > 1:
        logits[2, vocab_size // 2] = -torch.inf
    token_ids = torch.randint(vocab_size, (5,), device=device)
    num_top = min(4, vocab_size)
    found = gpu.logprobs_gpu(logits, token_ids.int(), num_top, normalise=normalise)
    expected = token_logprobs(logits.contiguous(), token_ids, [num_top] * 5, KernelSet(), normalise=normalise)
    assert found.ranks.tolist() == [each.rank for each in expected]
    assert found.top_ids.tolist() == [each.token_ids[1:] for each in expected]
    torch.testing.assert_close(found.own.cpu(), torch.tensor([each.logprobs[0] for each in expected]))
    torch.testing.assert_close(found.top_values.cpu(), torch.tensor([each.logprobs[1:] for each in expected]))


def test_the_token_alone(device):
    logits = logits_of(2, 50, torch.float32, device)
    found = gpu.logprobs_gpu(logits, torch.tensor([3, -1], device=device), 0)
    assert found.top_ids.shape == found.top_values.shape == (2, 0)
    torch.testing.assert_close(found.own[0], logits[0].log_softmax(-1)[3])


@pytest.mark.parametrize("rows", [0, 3])
@ALL_DTYPES
def test_softmax_mass_and_counts(device, dtype, rows):
    logits = logits_of(rows, 9001, dtype, device)
    temperature = torch.linspace(0.3, 2, rows, device=device)
    min_p = torch.linspace(0, 0.2, rows, device=device)
    largest, mass = gpu.softmax_mass_gpu(logits, temperature, min_p)
    expected_largest, expected_mass = softmax_mass_reference(logits, temperature, min_p)
    assert torch.equal(largest, expected_largest)
    torch.testing.assert_close(mass, expected_mass, atol=0, rtol=1e-5)
    bounds = logits[:, 11].float()
    assert torch.equal(gpu.count_above_gpu(logits, bounds), count_above_reference(logits, bounds))
