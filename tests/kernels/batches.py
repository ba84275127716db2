"""Paged caches and steps over them, with NaN wherever a kernel has no business to look; the formats of both."""

from __future__ import annotations

import pytest
import torch
from benchmarks.gpu.correctness import LIMITS
from benchmarks.gpu.paged_batch import Batch, batch

from .conftest import HAS_GPU

__all__ = ["DTYPES", "FORMATS", "LIMITS", "Batch", "batch"]

FORMATS = [torch.float32, torch.float16] + [torch.bfloat16] * HAS_GPU  # the interpreter's bfloat16 is wrong
DTYPES = pytest.mark.parametrize("dtype", FORMATS)
