"""Rotary position embedding: cosines and sines by position, for every rope type of config.json.

Source: RoFormer, arXiv:2104.09864; scaled types are computed as in transformers, with which models were trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from .step_input import StepInput

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional", "ntk"]
ROPE_KINDS: tuple[str, ...] = get_args(RopeKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParameters:
    """`rope_parameters` of config.json (`rope_theta` and `rope_scaling` of older files)."""

    kind: RopeKind
    theta: float
    original_max_position: int  # context the model was trained on before the scaling
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0  # multiplies cosines and sines
    long_attention_factor: float | None = None  # of contexts longer than the trained one; None: the same
    short_factors: tuple[float, ...] = ()  # longrope: one divisor per pair
    long_factors: tuple[float, ...] = ()
    rotated_share: float = 1.0  # proportional: of the pairs; the others are not rotated


def cos_sin_table(rope: RopeParameters, rotary_dim: int, num_positions: int) -> torch.Tensor:
    """Cosines and sines of every position.

    Args:
        rope: type and parameters.
        rotary_dim: even; how many elements of a head are rotated, its first ones.
        num_positions: max_model_len.
    Returns:
        [num_positions, rotary_dim] float32, cosines in the first half and sines in the second.
    """
    positions = torch.arange(num_positions, dtype=torch.float32)[:, None]
    if rope.kind == "dynamic":
        # Keys stay in the cache as they were written, so each position is rotated as in a sequence that ends there.
        # Generation in transformers does the same, and the result does not depend on how a prompt is cut into chunks.
        frequencies = _dynamic_frequencies(rope, rotary_dim, positions)
    elif rope.kind == "longrope":
        frequencies = _longrope_frequencies(rope, inverse_frequencies(rotary_dim, rope.theta), num_positions)
    else:
        frequencies = _FREQUENCIES[rope.kind](rope, inverse_frequencies(rotary_dim, rope.theta))
    angles = positions * frequencies
    scale = rope.attention_factor
    if rope.long_attention_factor is not None and num_positions > rope.original_max_position:
        scale = rope.long_attention_factor
    return torch.cat((angles.cos(), angles.sin()), dim=-1).mul_(scale)


class Rotation:
    """The rotary embedding of layers: what the kernels read of it in a step."""

    def __init__(self, table: torch.Tensor, pair_kinds: Sequence[int] = ()) -> None:
        """table: of `cos_sin_table`. pair_kinds: the kind of position that turns each pair; empty for one kind."""
        self.table = table
        self._pair_kinds = torch.tensor(pair_kinds, device=table.device) if pair_kinds else None

    @property
    def has_kinds(self) -> bool:
        return self._pair_kinds is not None

    def of(self, step: StepInput) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns cosines and sines [rows, rotary_dim], and which row each token has, [T] int64.

        They are the whole table and the positions themselves, or a table of the step, made from several kinds of them.
        """
        if self._pair_kinds is None or step.rope_positions is None:
            return self.table, step.positions
        if (found := step.plans.get(self)) is None:
            by_pair = step.rope_positions[self._pair_kinds].T
            halves = [half.gather(0, by_pair) for half in self.table.chunk(2, dim=1)]
            found = torch.cat(halves, dim=1), torch.arange(step.num_tokens, device=by_pair.device)
            step.plans[self] = found
        table, rows = found
        return table, rows


def inverse_frequencies(head_dim: int, base: float) -> torch.Tensor:
    """Rotation frequency of each rotary pair, highest first.

    Args:
        head_dim: even; pairs are (i, i + head_dim // 2).
        base: theta, 10_000 in the paper.
    Returns:
        [head_dim // 2], float32, radians per token. float32: bfloat16 cannot hold odd positions past 256.

    Raises ValueError if `head_dim` is odd. Source: RoFormer, arXiv:2104.09864, section 3.2.2.
    """
    if head_dim % 2:
        raise ValueError(f"head_dim {head_dim} is odd")
    return 1.0 / base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


def _default(rope: RopeParameters, frequencies: torch.Tensor) -> torch.Tensor:
    return frequencies


def _linear(rope: RopeParameters, frequencies: torch.Tensor) -> torch.Tensor:
    """Position interpolation: Chen et al., arXiv:2306.15595."""
    return frequencies / rope.factor


def _llama3(rope: RopeParameters, frequencies: torch.Tensor) -> torch.Tensor:
    """Low frequencies are interpolated, high ones kept, with a smooth transition. Llama 3.1, arXiv:2407.21783."""
    wavelengths = 2 * math.pi / frequencies
    rotations = rope.original_max_position / wavelengths  # within the trained context
    if rope.low_freq_factor == rope.high_freq_factor:  # Llama 4: without a transition
        kept = (rotations >= rope.low_freq_factor).float()
    else:
        kept = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        kept = kept.clamp(0, 1)
    return (1 - kept) * frequencies / rope.factor + kept * frequencies


def _yarn(rope: RopeParameters, frequencies: torch.Tensor) -> torch.Tensor:
    """Frequencies of pairs, kept above beta_fast rotations, interpolated below beta_slow. arXiv:2309.00071."""
    half = len(frequencies)

    def pair_with(rotations: float) -> float:
        return half * math.log(rope.original_max_position / (rotations * 2 * math.pi)) / math.log(rope.theta)

    low, high = pair_with(rope.beta_fast), pair_with(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    width = high - low or 0.001
    interpolated = ((torch.arange(half, dtype=torch.float32) - low) / width).clamp(0, 1)
    return frequencies / rope.factor * interpolated + frequencies * (1 - interpolated)


def _dynamic_frequencies(rope: RopeParameters, head_dim: int, positions: torch.Tensor) -> torch.Tensor:
    """NTK-aware scaling that grows with the length. Returns [positions, head_dim // 2]."""
    length = (positions + 1).clamp(min=rope.original_max_position).double()
    growth = rope.factor * length / rope.original_max_position - (rope.factor - 1)
    base = rope.theta * growth ** (head_dim / (head_dim - 2))
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    return (1.0 / base**exponents).float()


def _longrope_frequencies(rope: RopeParameters, frequencies: torch.Tensor, num_positions: int) -> torch.Tensor:
    """Ding et al., arXiv:2402.13753: the long factors if the longest sequence is longer than the trained context.

    transformers chooses by the longest position of a batch, so a sequence that grows past the trained context changes
    its factors. Keys in a cache have been rotated with the factors of their time, so here all sequences have those of
    max_model_len, with which a sequence of that length would end.
    """
    factors = rope.long_factors if num_positions > rope.original_max_position else rope.short_factors
    if len(factors) != len(frequencies):
        raise ValueError(f"longrope has {len(factors)} factors for {len(frequencies)} rotated pairs")
    return frequencies / torch.tensor(factors, dtype=torch.float32)


def _proportional(rope: RopeParameters, frequencies: torch.Tensor) -> torch.Tensor:
    """The first share of the pairs has the frequencies of the whole head, the others have none. Gemma 4."""
    rotated = int(rope.rotated_share * len(frequencies))
    return torch.cat((frequencies[:rotated], torch.zeros(len(frequencies) - rotated))) / rope.factor


def _ntk(rope: RopeParameters, frequencies: torch.Tensor) -> torch.Tensor:
    """Each pair is slowed by the factor to the power of its share of the pairs, the last one by all of it. GTE."""
    shares = torch.arange(1, len(frequencies) + 1) / len(frequencies)
    return frequencies / rope.factor**shares


_FREQUENCIES = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "proportional": _proportional,
    "ntk": _ntk,
}


def longrope_attention_factor(factor: float, original_max_position: int) -> float:
    """The value if config.json has no `attention_factor`: arXiv:2402.13753.

    factor: how much longer contexts may be than the trained ones.
    """
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original_max_position))


def query_scales(num_positions: int, interval: float, weight: float, first: int) -> torch.Tensor:
    """What queries are multiplied by at each position, so that attention stays sharp in long contexts.

    Args:
        num_positions: max_model_len.
        interval: tokens after which the factor grows: `floor_scale` of Llama 4, the trained context of Ministral 3.
        weight: how fast it grows: `attn_scale` of Llama 4, `llama_4_scaling_beta` of Ministral 3.
        first: the number of the first position: 1 for Llama 4, 0 for Ministral 3.
    Returns:
        [num_positions] float32: 1 + weight * log(1 + floor((position + first) / interval)).

    Source: Scalable-Softmax, arXiv:2501.19399.
    """
    positions = torch.arange(first, first + num_positions, dtype=torch.float32)
    return 1 + weight * torch.log1p(torch.floor(positions / interval))


def yarn_attention_factor(factor: float, mscale: float | None, mscale_all_dim: float | None) -> float:
    """The value if config.json has no `attention_factor`: arXiv:2309.00071, section 3.4."""

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    return scale(mscale) / scale(mscale_all_dim) if mscale and mscale_all_dim else scale(1.0)
