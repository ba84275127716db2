"""Encoders of GGUF's block types: [rows, columns] in float32 to the bytes of the rows, without calibration.

The gguf library encodes the types with one scale per block of 32. The K types have none in Python: a block of 256
elements has parts of 32 or 16, whose scales (and minima) are codes themselves, multiplied by numbers in float16. Here
the scale of a part is that of the least sum of squared errors among several candidates, each of them refined by least
squares over its own codes; then it is rounded to its code, and the codes of the elements are computed with the result.
Layouts: github.com/ggml-org/ggml, src/ggml-common.h, and the decoders in gguf.quants.
"""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize

BLOCK = 256
_ELEMENTS = 1 << 18  # that are encoded at once: more of them leave the caches
# By how many codes a part's least and its largest element may lie outside of the codes, which clips them and makes the
# steps of all others finer; or inside. Errors of 7.1 % and 3.6 % in Q4_K and Q5_K, 7.3 % and 3.7 % without candidates.
_OUTSIDE = (-0.3, 0.0, 0.4, 0.8, 1.2)
_CANDIDATES = tuple((below, above) for below in _OUTSIDE for above in _OUTSIDE if abs(below - above) < 1)
_SMALLEST = 1e-30  # of a divisor: the codes of a part of zeros are 0


def encode(matrix: torch.Tensor, dtype: str) -> np.ndarray:
    """matrix: [rows, columns], float32; columns are a multiple of the block's. dtype: GGUF's name. Returns an array
    with the bytes of the file."""
    if dtype == "F32":
        return matrix.numpy()
    if dtype == "F16":
        return matrix.clamp(-65504, 65504).half().numpy()
    flat, parts = matrix.reshape(-1, BLOCK if dtype in _ENCODERS else matrix.shape[-1]), []
    step = max(1, _ELEMENTS // flat.shape[1])
    for first in range(0, len(flat), step):
        part = flat[first : first + step]
        own = _ENCODERS.get(dtype)
        parts.append(quantize(part.numpy(), GGMLQuantizationType[dtype]) if own is None else own(part).numpy())
    return np.concatenate(parts).view(np.uint8).reshape(len(matrix), -1)


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    head, codes = _with_minima(blocks, 15)
    return torch.cat((head, _nibbles(codes)), 1)


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    head, codes = _with_minima(blocks, 31)
    high = ((codes >> 4) << torch.arange(8, dtype=torch.uint8).view(8, 1)).sum(1, dtype=torch.uint8)
    return torch.cat((head, high, _nibbles(codes & 15)), 1)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    """Sixteen parts of 16: d * scale * (code - 32), scales in int8."""
    parts = blocks.view(-1, 16, 16)
    wanted = _signed_scales(parts, 32)
    d = _half(wanted.abs().amax(1, keepdim=True) / 127)
    scales = (wanted / d.float().clamp_min(_SMALLEST)).round_().clamp_(-128, 127)
    steps = (d.float() * scales).unsqueeze(-1)
    codes = torch.where(steps == 0, 0, parts / torch.where(steps == 0, 1, steps)).round_().clamp_(-32, 31) + 32
    codes = codes.to(torch.uint8).view(-1, 2, 4, 32)  # two halves of four groups
    low = codes[:, :, :2] & 15 | (codes[:, :, 2:] & 15) << 4
    high = ((codes >> 4) << torch.arange(0, 8, 2, dtype=torch.uint8).view(4, 1)).sum(2, dtype=torch.uint8)
    return torch.cat((low.flatten(1), high.flatten(1), scales.to(torch.int8).view(torch.uint8), d.view(torch.uint8)), 1)


_ENCODERS = {"Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k}


def _with_minima(blocks: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight parts of 32: d * scale * code - e * minimum, scales and minima in six bits.

    Returns the head of the blocks, [blocks, 16], and the codes, [blocks, 8, 32], both uint8.
    """
    parts = blocks.view(-1, 8, 32)
    scales, minima = _scales_and_minima(parts, largest)
    d, scale_codes = _six_bits(scales)
    e, minimum_codes = _six_bits(minima)
    for _ in range(2):
        steps = (d.float() * scale_codes).unsqueeze(-1)
        least = (e.float() * minimum_codes).unsqueeze(-1)
        codes = ((parts + least) / steps.clamp_min(_SMALLEST)).round_().clamp_(0, largest)
        codes = torch.where(steps == 0, 0, codes)
        d, e = _refined(parts, codes * scale_codes.unsqueeze(-1), minimum_codes.unsqueeze(-1), d, e)
    steps, least = (d.float() * scale_codes).unsqueeze(-1), (e.float() * minimum_codes).unsqueeze(-1)
    codes = ((parts + least) / steps.clamp_min(_SMALLEST)).round_().clamp_(0, largest)
    codes = torch.where(steps == 0, 0, codes).to(torch.uint8)
    packed = _packed_six_bits(scale_codes.to(torch.uint8), minimum_codes.to(torch.uint8))
    return torch.cat((d.view(torch.uint8), e.view(torch.uint8), packed), 1), codes


def _scales_and_minima(parts: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Both are at least 0. An element is scale * code - minimum. parts: [..., elements]."""
    low, high = parts.amin(-1, keepdim=True).clamp_max(0), parts.amax(-1, keepdim=True).clamp_min(0)
    best_error = torch.full_like(low, torch.inf)
    best_scale, best_minimum = torch.zeros_like(low), torch.zeros_like(low)
    count, total = parts.shape[-1], parts.sum(-1, keepdim=True)
    for below, above in _CANDIDATES:
        scale = (high - low) / (largest + below + above)
        minimum = (-low - below * scale).clamp_min_(0)
        for _ in range(2):
            codes = ((parts + minimum) / scale.clamp_min(_SMALLEST)).round_().clamp_(0, largest)
            error = (scale * codes - minimum - parts).square_().sum(-1, keepdim=True)
            is_less = error < best_error
            best_error = torch.where(is_less, error, best_error)
            best_scale = torch.where(is_less, scale, best_scale)
            best_minimum = torch.where(is_less, minimum, best_minimum)
            # the straight line through (code, element) with the least squares
            sums, squares = codes.sum(-1, keepdim=True), codes.square().sum(-1, keepdim=True)
            products = (codes * parts).sum(-1, keepdim=True)
            scale = (count * products - sums * total) / (count * squares - sums.square()).clamp_min(1)
            minimum = ((scale * sums - total) / count).clamp_min(0)
            scale = torch.where(minimum > 0, scale, products / squares.clamp_min(1)).clamp_min(0)
    return best_scale.squeeze(-1), best_minimum.squeeze(-1)


def _refined(
    parts: torch.Tensor, scaled: torch.Tensor, minima: torch.Tensor, d: torch.Tensor, e: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """d and e of each block with the least squares of d * scaled - e * minima - parts; as they were if that is none."""
    minima = minima.expand_as(scaled)
    ss, mm, sm = scaled.square().sum((1, 2)), minima.square().sum((1, 2)), (scaled * minima).sum((1, 2))
    sx, mx = (scaled * parts).sum((1, 2)), (minima * parts).sum((1, 2))
    determinant = ss * mm - sm.square()
    is_sound = determinant > 1e-3 * ss * mm
    divisor = torch.where(is_sound, determinant, 1)
    new_d, new_e = _half((sx * mm - mx * sm) / divisor), _half((sx * sm - mx * ss) / divisor)
    is_sound &= (new_d > 0) & (new_e > 0)
    return torch.where(is_sound.unsqueeze(1), new_d.unsqueeze(1), d), torch.where(
        is_sound.unsqueeze(1), new_e.unsqueeze(1), e
    )


def _signed_scales(parts: torch.Tensor, half: int) -> torch.Tensor:
    """Scales, which may be negative, of codes from -half to half - 1: the largest element may have the code -half."""
    largest = parts.gather(-1, parts.abs().argmax(-1, keepdim=True))
    best, best_error = torch.zeros_like(largest), torch.full_like(largest, torch.inf)
    for share in (1.0, 0.97, 0.94, 0.9):
        for divisor in (-half, half - 1):
            scale = largest * share / divisor
            for _ in range(2):
                is_zero = scale == 0
                codes = torch.where(is_zero, 0, parts / torch.where(is_zero, 1, scale)).round_().clamp_(-half, half - 1)
                error = (scale * codes - parts).square_().sum(-1, keepdim=True)
                is_less = error < best_error
                best_error, best = torch.where(is_less, error, best_error), torch.where(is_less, scale, best)
                scale = (codes * parts).sum(-1, keepdim=True) / codes.square().sum(-1, keepdim=True).clamp_min(1)
    return best.squeeze(-1)


def _six_bits(wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """wanted: [blocks, 8], at least 0. Returns the unit in float16, [blocks, 1], and the codes as float32."""
    unit = _half(wanted.amax(1, keepdim=True) / 63)
    return unit, (wanted / unit.float().clamp_min(_SMALLEST)).round_().clamp_(0, 63)


def _packed_six_bits(scales: torch.Tensor, minima: torch.Tensor) -> torch.Tensor:
    """[blocks, 12]: the first four of each with the two high bits of the last four above them, then their low bits."""
    return torch.cat(
        (
            scales[:, :4] | (scales[:, 4:] >> 4) << 6,
            minima[:, :4] | (minima[:, 4:] >> 4) << 6,
            scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4,
        ),
        1,
    )


def _nibbles(codes: torch.Tensor) -> torch.Tensor:
    """[blocks, 8, 32] to [blocks, 128]: parts 2 * i in the low, 2 * i + 1 in the high halves of 32 bytes."""
    return (codes[:, 0::2] | codes[:, 1::2] << 4).flatten(1)


def _half(values: torch.Tensor) -> torch.Tensor:
    return values.clamp(-65504, 65504).half()
