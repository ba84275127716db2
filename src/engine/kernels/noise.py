"""Noise for sampling tokens: a function of (seed, position, token id), so a sample never depends on the batch.

Gumbel-max in its exponential form: with E independent and exponential, argmax(weight / E) picks token i with
probability weight_i / sum(weight). The noise of a token is a hash, not a state: a request gets the same samples alone
or in a batch, after a prefix hit or a preemption, and over any part of the vocabulary.
Source: Efraimidis and Spirakis, Information Processing Letters 97 (2006); the hash is the lowbias32 finaliser of
Wellons' hash prospector with the second key word added between its rounds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


def row_keys(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]) -> torch.Tensor:
    """A 64-bit key for every (seed, position), as two words: [R, 2] int32.

    position: index of the sampled token in its sequence, prompt included.
    """
    keys = _splitmix(_splitmix(seeds) ^ positions.astype(np.uint64))
    return torch.from_numpy(keys.view(np.int32).reshape(len(keys), 2))


def exponential_noise(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Standard exponential noise of given tokens.

    Args:
        keys: [R, 2] int32 of `row_keys`.
        token_ids: [R, C] or [1, C] int64.
    Returns:
        [R, C] float32, all greater than 0.

    -log(1 - u), u uniform in (0, 1). Sampled tokens have small noise, which comes from small u: float32 represents u in
    steps of 2**-31, while 1 - u near 1 would have steps of 2**-24.
    """
    bits = _hash(keys, token_ids.to(torch.int32))
    uniform = bits.float().mul_(2.0**-31).add_(2.0**-32).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_()


def _hash(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """31 mixed bits per (key, token), so never negative. int32 products wrap; shifted-in sign bits are masked off."""
    bits = (token_ids * -1640531527) ^ keys[:, :1]  # 2**32 / golden ratio: neighbouring ids far apart
    shifted = bits >> 16
    bits ^= shifted.bitwise_and_(0xFFFF)
    bits *= 0x7FEB352D
    bits += keys[:, 1:]
    torch.bitwise_right_shift(bits, 15, out=shifted)
    bits ^= shifted.bitwise_and_(0x1FFFF)
    bits *= -2073254261  # 0x846ca68b
    torch.bitwise_right_shift(bits, 16, out=shifted)
    bits ^= shifted  # with the sign bits left in: they clear bit 31
    return bits


def _splitmix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed
