"""Paged caches and steps over them, with NaN in all memory that a kernel must not read; dtypes; slow cases."""

from __future__ import annotations

import pytest
import torch
from benchmarks.gpu.correctness import LIMITS
from benchmarks.gpu.paged_batch import Batch, batch

from .conftest import HAS_GPU

__all__ = ["ALL_DTYPES", "DTYPES", "LIMITS", "Batch", "batch", "slow"]

_DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * HAS_GPU  # the interpreter's bfloat16 is wrong


def slow(*values: object) -> object:
    """A case of a parametrised test that only `make test-slow` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


ALL_DTYPES = pytest.mark.parametrize("dtype", _DTYPES)
DTYPES = pytest.mark.parametrize("dtype", [_DTYPES[0], *(slow(each) for each in _DTYPES[1:])])
