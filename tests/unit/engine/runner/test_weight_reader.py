from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stoker.config import ModelFilesError
from stoker.config.checkpoint.layout import read_tensors
from stoker.engine.runner.weight_reader import EagerReader
from stoker.engine.runner.weights import Checkpoint

A, B = torch.arange(6.0), torch.arange(100.0, 104.0)


def read(files: Checkpoint, name: str, like: torch.Tensor) -> torch.Tensor:
    into = torch.empty_like(like)
    files.read(name, into)
    return into


def two(folder: Path) -> Path:
    save_file({"a": A, "b": B}, folder / "one.safetensors")
    return folder / "one.safetensors"


@pytest.mark.effect("load.safetensors_load_strategy")
def test_an_eager_reader_needs_the_file_once_and_a_lazy_one_for_each_tensor(tmp_path: Path):
    file = two(tmp_path)
    tensors = read_tensors(tmp_path, [file.name])
    eager, lazy = (Checkpoint(tmp_path, tensors, is_eager=is_eager) for is_eager in (True, False))
    for files in (eager, lazy):
        assert torch.equal(read(files, "a", A), A)
    file.unlink()
    assert torch.equal(read(eager, "b", B), B)
    with pytest.raises(ModelFilesError, match=r"one\.safetensors: cannot be read: No such file"):
        read(lazy, "b", B)


def test_an_eager_reader_lets_a_file_go_with_its_last_tensor(tmp_path: Path):
    file = two(tmp_path)
    tensors = read_tensors(tmp_path, [file.name])
    reader = EagerReader(tensors.values())
    reader.read(file, tensors["a"].offset, memoryview(bytearray(24)), "a")
    assert sum(map(len, reader._whole.values())) == file.stat().st_size
    reader.done(file)
    assert sum(map(len, reader._whole.values())) == file.stat().st_size
    reader.done(file)
    assert sum(map(len, reader._whole.values())) == 0


@pytest.mark.parametrize("is_eager", [True, False])
def test_a_file_that_shrinks_after_its_header_was_read_is_named(tmp_path: Path, is_eager: bool):
    file = two(tmp_path)
    files = Checkpoint(tmp_path, read_tensors(tmp_path, [file.name]), is_eager=is_eager)
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ModelFilesError, match=r"one\.safetensors: cut short while reading tensor `b`"):
        read(files, "b", B)


def large(folder: Path) -> tuple[torch.Tensor, Checkpoint]:
    """A tensor large enough to map, after one that keeps it off a page boundary."""
    values = torch.randn(515, 512)
    save_file({"a": A, "b": values}, folder / "one.safetensors")
    return values, Checkpoint(folder, read_tensors(folder, ["one.safetensors"]))


@pytest.mark.skipif(sys.platform != "linux", reason="files are mapped on Linux only")
def test_a_large_tensor_is_a_view_of_the_file(tmp_path: Path):
    values, files = large(tmp_path)
    view = files.view("b", torch.float32)
    assert view is not None
    assert torch.equal(view, values)
    view.zero_()  # its own copy of the pages: the file stays
    assert torch.equal(read(files, "b", values), values)


def test_a_small_or_converted_tensor_has_no_view(tmp_path: Path):
    values, files = large(tmp_path)
    assert files.view("a", torch.float32) is None
    assert files.view("b", torch.bfloat16) is None
    assert torch.equal(read(files, "b", values.bfloat16()), values.bfloat16())


def test_an_eager_reader_maps_nothing(tmp_path: Path):
    values, files = large(tmp_path)
    eager = Checkpoint(tmp_path, files.tensors, is_eager=True)
    assert eager.view("b", torch.float32) is None
    assert torch.equal(read(eager, "b", values), values)


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_large_tensor_of_a_shortened_or_missing_file_is_the_same_error_as_a_small_one(tmp_path: Path, is_gone: bool):
    values, files = large(tmp_path)
    file = tmp_path / "one.safetensors"
    if is_gone:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ModelFilesError, match=r"cannot be read: No such file|cut short while reading tensor `b`"):
        read(files, "b", values)
