"""Servers that these tests start find compiled kernels: a change of kernels during a test would change the rounding."""

from __future__ import annotations

import contextlib

import pytest

from stoker.config.cpu_features import NoKernels, choose_level, this_cpu, wanted_level
from stoker.config.cpu_library import LibrarySpec
from stoker.engine.kernels.cpu.library import load_library


@pytest.fixture(autouse=True, scope="session")
def _compiled_kernels() -> None:
    with contextlib.suppress(NoKernels):
        level, _ = choose_level(wanted_level(), this_cpu())
        load_library(LibrarySpec(level))
