"""tools/fuzz_headers.py on a few inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.fuzz_headers import inputs, problem


@pytest.mark.parametrize("count", [200, pytest.param(4_000, marks=pytest.mark.slow)])
def test_a_damaged_header_is_refused_and_takes_no_memory(count: int, tmp_path: Path) -> None:
    for index, (suffix, content) in enumerate(inputs(count, seed=7)):
        path = tmp_path / f"{index}{suffix}"
        path.write_bytes(content)
        assert not problem(path), content.hex()
        path.unlink()
