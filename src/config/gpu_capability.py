"""Compute capabilities that the kernels for GPUs need, as (major, minor)."""

from __future__ import annotations

LEAST_CAPABILITY = (8, 0)  # Ampere: the first with bfloat16 and asynchronous copies, which the kernels need
FP8_CAPABILITY = (8, 9)  # Ada: the first that converts fp8


def capability_text(capability: tuple[int, int]) -> str:
    """Text for descriptions and messages: `8.9`."""
    return f"{capability[0]}.{capability[1]}"
