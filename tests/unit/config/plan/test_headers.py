from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.config.plan.headers import read_stored

SIZES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "I32": 4, "U8": 1}


def write_shard(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> int:
    """A header in front of a hole: the file is as long as its tensors, and takes no room on the disk."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for width in shape:
            size *= width
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + position)
    return position


def write_index(folder: Path, shards: dict[str, list[str]], total: int) -> None:
    table = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    content = {"metadata": {"total_size": total}, "weight_map": table}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


def test_bytes_are_counted_by_stored_dtype_and_plain_numbers_become_the_models(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"a": ("F32", [10, 10]), "b": ("BF16", [100])})
    stored = read_stored(tmp_path, is_tied=False)
    assert stored is not None
    assert stored.num_bytes == {"F32": 400, "BF16": 200}
    assert (stored.total_bytes, stored.bytes_in("bfloat16"), stored.bytes_in("float32")) == (600, 400, 800)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I32", "U8"])
def test_quantised_tensors_stay_as_they_are_stored(tmp_path: Path, dtype: str) -> None:
    packed = write_shard(tmp_path / "model.safetensors", {"qweight": (dtype, [64, 64])})
    write_shard(tmp_path / "model.safetensors", {"qweight": (dtype, [64, 64]), "scales": ("BF16", [64])})
    stored = read_stored(tmp_path, is_tied=False)
    assert stored is not None
    assert stored.bytes_in("float32") == packed + 64 * 4


def test_a_tied_output_layer_is_not_counted_twice(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"embed": ("BF16", [100]), "lm_head.weight": ("BF16", [100])})
    tied, apart = read_stored(tmp_path, is_tied=True), read_stored(tmp_path, is_tied=False)
    assert tied is not None
    assert apart is not None
    assert (tied.total_bytes, apart.total_bytes) == (200, 400)


def test_missing_files_count_by_the_total_of_the_index(tmp_path: Path) -> None:
    size = write_shard(tmp_path / "model-1.safetensors", {"a": ("BF16", [1000])})
    write_index(tmp_path, {"model-1.safetensors": ["a"], "model-2.safetensors": ["b"]}, 3 * size)
    stored = read_stored(tmp_path, is_tied=False)
    assert stored is not None
    assert (stored.num_files, stored.total_bytes) == (2, 3 * size)
    assert stored.problems == ("model-2.safetensors: cannot be read: No such file or directory",)
    assert stored.bytes_in("float32") == 6 * size


def test_no_weight_files_are_no_mistake(tmp_path: Path) -> None:
    assert read_stored(tmp_path, is_tied=False) is None


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, struct.pack("<Q", 1 << 60), struct.pack("<Q", 4) + b"none"])
def test_files_that_are_none_are_named_and_stop_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    write_shard(tmp_path / "b.safetensors", {"a": ("BF16", [1000])})
    stored = read_stored(tmp_path, is_tied=False)
    assert stored is not None
    assert stored.total_bytes == 2000
    assert [problem.partition(":")[0] for problem in stored.problems] == ["a.safetensors"]


def test_four_hundred_files_are_read_within_two_seconds(tmp_path: Path) -> None:
    shards: dict[str, list[str]] = {}
    total = 0
    for number in range(400):
        name = f"model-{number:05}.safetensors"
        tensors = {f"layers.{number}.{part}.weight": ("BF16", [2048, 2048]) for part in range(12)}
        total += write_shard(tmp_path / name, tensors)
        shards[name] = list(tensors)
    write_index(tmp_path, shards, total)
    began = time.monotonic()
    stored = read_stored(tmp_path, is_tied=False)
    assert time.monotonic() - began < 2
    assert stored is not None
    assert (stored.num_files, stored.num_tensors, stored.total_bytes) == (400, 4800, total)
