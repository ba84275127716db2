from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stoker.config import ModelFilesError
from stoker.config.checkpoint.layout import read_tensors
from stoker.engine.runner.weights import Checkpoint

A = torch.arange(12, dtype=torch.float32).view(3, 4)
B = torch.tensor([1.5, -2.25])


def checkpoint(folder: Path, **tensors: torch.Tensor) -> Checkpoint:
    save_file(tensors, folder / "one.safetensors")
    return Checkpoint(folder, read_tensors(folder, ["one.safetensors"]))


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_tensors_are_read_into_place_and_converted(tmp_path: Path, stored: torch.dtype, wanted: torch.dtype):
    files = checkpoint(tmp_path, a=A.to(stored), b=B.to(stored))
    whole = torch.full((5, 4), 7.0, dtype=wanted)
    files.read("a", whole[1:4])
    assert torch.equal(whole[1:4], A.to(wanted))
    assert (whole[[0, 4]] == 7).all()


def test_a_tensor_larger_than_the_staging_buffer_is_converted_in_parts(tmp_path: Path):
    values = torch.randn(3, (1 << 22) + 1)
    into = torch.empty_like(values, dtype=torch.bfloat16)
    checkpoint(tmp_path, a=values).read("a", into)
    assert torch.equal(into, values.bfloat16())


def test_several_files_are_one_checkpoint(tmp_path: Path):
    save_file({"a": A}, tmp_path / "x.safetensors")
    save_file({"b": B}, tmp_path / "y.safetensors")
    files = Checkpoint(tmp_path, read_tensors(tmp_path, ["x.safetensors", "y.safetensors"]))
    into = torch.empty(2)
    files.read("b", into)
    assert torch.equal(into, B)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [7, 1 << 20])  # read, and mapped
def test_a_tensor_with_nan_or_infinity_is_refused_by_name(tmp_path: Path, value: float, dtype: torch.dtype, size: int):
    """The first request of such a model was once answered with nonsense."""
    values = torch.zeros(size, dtype=dtype)
    values[-1] = value
    files = checkpoint(tmp_path, a=torch.zeros(size, dtype=dtype), b=values)
    files.read("a", torch.empty(size, dtype=dtype))
    with pytest.raises(ModelFilesError, match=r"one\.safetensors: tensor `b` has NaN or infinite elements$"):
        files.read("b", torch.empty(size, dtype=dtype))
    if size > 7:
        with pytest.raises(ModelFilesError, match="tensor `b`"):
            files.view("b", dtype)


def test_a_value_that_the_dtype_in_use_cannot_hold_is_refused(tmp_path: Path):
    files = checkpoint(tmp_path, a=torch.tensor([1.0, 1e6]))
    with pytest.raises(ModelFilesError, match=r"as float16; it is stored as F32, see `model\.dtype`"):
        files.read("a", torch.empty(2, dtype=torch.float16))
