"""Launch tables: the shipped ones can be read, and an error names the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import HAS_GPU

pytest.importorskip("triton")
from stoker.engine.kernels.gpu import tuned

FILES = sorted(Path(tuned.__file__).parent.glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_table_is_valid(file: Path):
    found = tuned.read_tuned(file)
    assert found.gemv_of(1 << 40) is found.gemv[-1]
    assert found.gemv_of(1) is found.gemv[0]


@pytest.mark.skipif(HAS_GPU, reason="there may be a table for the GPU")
def test_the_interpreter_has_a_table_of_its_own():
    assert tuned.tuned() == tuned.read_tuned(Path(tuned.__file__).parent / "interpreter.json")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("gemv", 0, "depth"), 100, "gemv.0.depth: Value error, 100 is not a power of two"),
        (("gemv", 0, "warps"), 0, "gemv.0.warps: Input should be greater than 0"),
        (("gemv", 1, "max_outputs"), 8, "gemv: max_outputs must be ascending, and null in the last entry only"),
        (("gemv",), [], "gemv: max_outputs must be ascending"),
        (("decode_attention", "warp"), 4, "decode_attention.warp: Extra inputs are not permitted"),
        (("measured",), "yes", "measured: Input should be"),
    ],
)
def test_an_error_names_the_field(place: tuple[Any, ...], value: Any, message: str, tmp_path: Path):
    table = json.loads(FILES[0].read_text())
    part = table
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    file = tmp_path / "some_gpu.json"
    file.write_text(json.dumps(table))
    with pytest.raises(ValueError, match=r"some_gpu\.json: ") as raised:
        tuned.read_tuned(file)
    assert message in str(raised.value)
