"""Bytes that the engine needs for adapters, in the layout of engine/kernels/lora_add.py."""

from __future__ import annotations

from collections.abc import Iterable

PANEL = 32  # columns of B that are stored together


def matrix_bytes(rank: int, in_features: int, out_features: int, element_bytes: int) -> int:
    """Bytes of what an adapter of this rank adds to one weight: A, and B padded to whole panels. A bias, and the
    factors of DoRA, take 4 * out_features bytes more each."""
    return rank * (in_features + -(-out_features // PANEL) * PANEL) * element_bytes


def adapters_bytes(
    shapes: Iterable[tuple[int, int]], num_copies: int, max_rank: int, element_bytes: int, num_vectors: int = 0
) -> int:
    """Maximum number of bytes of `num_copies` adapters that change all of these weights.

    shapes: [outputs, inputs] of the weights of this device. num_vectors: of a bias and factors, in float32.
    """
    each = sum(
        matrix_bytes(max_rank, inputs, outputs, element_bytes) + 4 * outputs * num_vectors for outputs, inputs in shapes
    )
    return num_copies * each
