"""Tests of kernels: seeded, and in a normal run only for the best level of this machine and for torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .levels import BEST


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Random values of a test do not depend on which tests ran before it."""
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)  # before the marker decides which tests are selected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The libraries of other levels are not compiled at installation: a minute of compiling for each."""
    here = Path(__file__).parent
    for item in items:
        callspec = getattr(item, "callspec", None)
        level = callspec.params.get("level") if callspec is not None else None
        if here in item.path.parents and isinstance(level, str) and level not in ("torch", BEST):
            item.add_marker(pytest.mark.slow)
