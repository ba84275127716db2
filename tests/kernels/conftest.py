"""Triton kernels run on a GPU if there is one, else in Triton's interpreter, which tests/conftest.py selects."""

from __future__ import annotations

import pytest
import torch

HAS_GPU = torch.cuda.is_available()


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if HAS_GPU else "cpu")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
