"""Shared by all tests: no test leaves files in the user's folders."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

if not os.path.exists("/proc/driver/nvidia"):
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported, by whichever test that is


settings.register_profile("repeatable", derandomize=True)  # a run fails because of the change it tests, not by chance
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def _no_traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Engines that tests start write their measurements elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
