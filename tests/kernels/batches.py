"""Paged caches and steps over them, with NaN in all memory that a kernel must not read; dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from benchmarks.gpu.correctness import LIMITS
from benchmarks.gpu.paged_batch import Batch, batch
from tests.slow_cases import slow

from .conftest import HAS_GPU

__all__ = ["ALL_DTYPES", "DTYPES", "LIMITS", "Batch", "batch", "memory_of_nan"]

_DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * HAS_GPU  # the interpreter's bfloat16 is wrong


ALL_DTYPES = pytest.mark.parametrize("dtype", _DTYPES)
DTYPES = pytest.mark.parametrize("dtype", [_DTYPES[0], *(slow(each) for each in _DTYPES[1:])])


@contextmanager
def memory_of_nan() -> Iterator[None]:
    """New tensors hold NaN, not what was there before."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # it fills memory, see torch.utils.deterministic
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
