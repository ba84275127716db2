"""`device.self_test` in a whole engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Saved
from .engine import Engine, resolved


@pytest.mark.effect("device.self_test")
def test_the_start_up_table_has_the_result_and_the_phase(saved: Callable[[str], Saved], tmp_path: Path):
    folder = saved("qwen3")[1]
    plain, tested = (
        Engine(resolved(folder, tmp_path, model={"dtype": "bfloat16"}, device={"self_test": is_on})).runner.info()
        for is_on in (False, True)
    )
    assert "self_test" not in plain.kernels
    assert "self-test" not in plain.phases
    assert tested.kernels["self_test"].startswith(("linear layers: one row reads weights at ", "not measured: "))
    assert tested.phases["self-test"] > 0
