"""The sampling ops, compared with their references: the same tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stoker.engine.kernels import noise
from stoker.engine.kernels.sample_tokens import sample_tokens_reference

from .batches import DTYPES

pytest.importorskip("triton")
import triton
import triton.language as tl

from stoker.engine.kernels.gpu.gumbel_max import exponential_noise
from stoker.engine.kernels.gpu.sample_ops import sample_tokens_gpu, sample_top_p_gpu
from stoker.engine.kernels.sample_top_p import sample_top_p_reference


@triton.jit
def _noise(keys, out, BLOCK: tl.constexpr):
    ids = tl.arange(0, BLOCK)
    key, other = tl.load(keys).to(tl.uint32, bitcast=True), tl.load(keys + 1).to(tl.uint32, bitcast=True)
    tl.store(out + ids, exponential_noise(ids, key, other))


def test_noise_equals_the_reference(device):
    for keys in keys_of(8, device):
        found = torch.empty(4096, device=device)
        _noise[(1,)](keys, found, BLOCK=4096)
        expected = noise.exponential_noise(keys[None], torch.arange(4096, device=device)[None])[0]
        torch.testing.assert_close(found, expected, atol=0, rtol=1e-5)


def keys_of(rows: int, device: torch.device) -> torch.Tensor:
    return noise.row_keys(np.arange(rows, dtype=np.uint64), np.arange(rows)).to(device)


@pytest.mark.parametrize(("rows", "vocab_size"), [(24, 5), (24, 1000), (24, 5000)])
@DTYPES
@pytest.mark.parametrize("min_p", [None, 0.05])
@pytest.mark.quick_cases(1)
def test_tokens_equal_the_reference(device, rows, vocab_size, dtype, min_p):
    logits = (torch.randn(rows, vocab_size, device=device) * 3).to(dtype)
    temperature = torch.linspace(0, 1.5, rows, device=device)
    keys = keys_of(rows, device)
    bound = None if min_p is None else torch.full((rows,), min_p, device=device)
    zeros = torch.zeros(rows, device=device)
    expected = sample_tokens_reference(logits, temperature, zeros if bound is None else bound, keys)
    assert torch.equal(sample_tokens_gpu(logits, temperature, bound, keys), expected)


def test_equal_logits_give_the_first_token_greedily(device):
    logits = torch.zeros(3, 9000, device=device)
    logits[1, 5000:] = 1  # in the second tile, and in the third
    sampled = sample_tokens_gpu(logits, torch.zeros(3, device=device), None, keys_of(3, device))
    assert sampled.tolist() == [0, 5000, 0]


def test_a_row_without_valid_logits_gives_no_token(device):
    logits = torch.full((3, 2000), -torch.inf, device=device)
    logits[1] = torch.nan
    logits[2, 1500] = -5
    for temperature in (0.0, 1.0):
        sampled = sample_tokens_gpu(logits, torch.full((3,), temperature, device=device), None, keys_of(3, device))
        assert sampled.tolist() == [-1, -1, 1500]


@pytest.mark.slow
def test_a_sample_does_not_depend_on_the_others(device):
    logits, keys = torch.randn(40, 2100, device=device), keys_of(40, device)
    ones = torch.ones(40, device=device)
    together = sample_tokens_gpu(logits, ones, None, keys)
    alone = [int(sample_tokens_gpu(logits[i : i + 1], ones[:1], None, keys[i : i + 1])) for i in range(9)]
    assert together[:9].tolist() == alone


@DTYPES
@pytest.mark.slow
def test_top_p_tokens_equal_the_reference(device, dtype):
    logits = (torch.randn(12, 700, device=device) * 3).to(dtype)
    temperature = torch.linspace(0.3, 1.5, 12, device=device)
    top_p = torch.tensor([0.01, 0.5, 0.9, 0.999], device=device).repeat(3)
    min_p = torch.linspace(0, 0.1, 12, device=device)
    arguments = logits, temperature, min_p, top_p, keys_of(12, device)
    assert torch.equal(sample_top_p_gpu(*arguments), sample_top_p_reference(*arguments))
