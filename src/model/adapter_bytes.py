"""Bytes that the engine needs for adapters, in the layout of engine/kernels/lora_add.py."""

from __future__ import annotations

from collections.abc import Iterable

PANEL = 32  # columns of B that are stored together


def matrix_bytes(rank: int, in_features: int, out_features: int, element_bytes: int) -> int:
    """Bytes of what an adapter of this rank adds to one weight: A, and B padded to whole panels. A bias takes
    4 * out_features bytes more."""
    return rank * (in_features + -(-out_features // PANEL) * PANEL) * element_bytes


def adapters_bytes(
    shapes: Iterable[tuple[int, int]], num_copies: int, max_rank: int, element_bytes: int, has_biases: bool = False
) -> int:
    """Maximum number of bytes of `num_copies` adapters that change all of these weights.

    shapes: [outputs, inputs] of the weights of this device.
    """
    each = sum(
        matrix_bytes(max_rank, inputs, outputs, element_bytes) + (4 * outputs if has_biases else 0)
        for outputs, inputs in shapes
    )
    return num_copies * each
