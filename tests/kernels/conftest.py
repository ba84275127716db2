"""Triton kernels run on a GPU if there is one, else in Triton's interpreter, which tests/conftest.py selects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

HAS_GPU = torch.cuda.is_available()


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if HAS_GPU else "cpu")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _nothing_is_left_of_others() -> Iterator[None]:
    """New tensors hold NaN or the largest number: memory that is used again may hold the very results of another call.

    What a kernel does not write would then be taken for right, or not, depending on what ran before.
    """
    if HAS_GPU:  # the switch would also choose other kernels of torch
        yield
        return
    torch.use_deterministic_algorithms(True)  # fills uninitialized memory
    yield
    torch.use_deterministic_algorithms(False)
