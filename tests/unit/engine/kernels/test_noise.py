from __future__ import annotations

import numpy as np
import torch

from stoker.engine.kernels.noise import exponential_noise, row_keys


def keys(seeds: list[int], positions: list[int]) -> torch.Tensor:
    return row_keys(np.array(seeds, np.uint64), np.array(positions, np.int64))


def test_noise_of_a_token_does_not_depend_on_the_other_tokens():
    key = keys([3, 2**64 - 1], [0, 131_072])
    everything = exponential_noise(key, torch.arange(1000)[None])
    some = torch.tensor([[999, 0, 17], [5, 5, 998]])
    assert torch.equal(exponential_noise(key, some), everything.gather(1, some))


def test_noise_is_exponential_and_never_zero():
    noise = exponential_noise(keys([1] * 50, list(range(50))), torch.arange(10_000)[None])
    assert noise.min() > 0
    assert noise.isfinite().all()
    assert abs(noise.mean().item() - 1) < 0.01  # 500,000 samples: standard deviation 0.0014
    assert abs(noise.var().item() - 1) < 0.03
    assert abs((noise < 1e-3).float().mean().item() - 1e-3) < 2e-4


def test_rows_and_consecutive_tokens_are_not_correlated():
    noise = exponential_noise(keys([1, 1, 2], [10, 11, 10]), torch.arange(100_000)[None]) - 1
    for row in range(3):
        for other in range(row):
            assert abs((noise[row] * noise[other]).mean().item()) < 0.02
        assert abs((noise[row, 1:] * noise[row, :-1]).mean().item()) < 0.02
