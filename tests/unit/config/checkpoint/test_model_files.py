from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from stoker.config import ModelFilesError, ModelNotLocal
from stoker.config.checkpoint.layout import read_weight_files
from stoker.config.checkpoint.model_files import is_hub_id, locate, read_json

from ..model_files import write_model, write_safetensors

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def sharded(folder: Path) -> Path:
    for name, tensor in zip(SHARDS, "ab", strict=True):
        write_safetensors(folder / name, {tensor: [2, 3]})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}))
    return folder


def fault(folder: Path) -> ModelFilesError:
    with pytest.raises(ModelFilesError) as caught:
        read_weight_files(folder)
    assert caught.value.exit_code == 3
    return caught.value


def header(folder: Path, value: Any, size: int = 0) -> Path:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
    return folder


def test_headers_are_counted_over_all_files(tmp_path: Path) -> None:
    weights = read_weight_files(sharded(tmp_path))
    assert (weights.names, weights.format, weights.count()) == (SHARDS, "safetensors", {"BF16": 12})


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (sharded(tmp_path) / SHARDS[1]).unlink()
    assert str(fault(tmp_path)) == f"{tmp_path / SHARDS[1]}: missing, though model.safetensors.index.json names it"


def test_a_truncated_shard_tells_both_lengths(tmp_path: Path) -> None:
    file = sharded(tmp_path) / SHARDS[0]
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-3])
    assert str(fault(tmp_path)) == f"{file}: expected {size} bytes, found {size - 3}"


@pytest.mark.parametrize(
    "content", [b"", b"\x07", b"\xff" * 8, struct.pack("<Q", 2**63) + b"{}", b"<html>not here</html>"]
)
def test_what_is_not_a_safetensors_file_is_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert fault(tmp_path).code == "M303"


@pytest.mark.parametrize(
    "value",
    [
        b"nonsense",
        b"\xff\xfe",
        b"[" * 100_000,
        [1],
        {"a": 1},
        {"a": {"dtype": "F32", "shape": [1]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
        {
            "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            "b": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]},
        },
    ],
)
def test_a_header_with_wrong_sizes_is_reported(tmp_path: Path, value: Any) -> None:
    assert fault(header(tmp_path, value, 8)).code == "M303"


def test_a_foreign_dtype_is_named(tmp_path: Path) -> None:
    entry = {"a": {"dtype": "F8_E5M2", "shape": [4], "data_offsets": [0, 4]}}
    assert "F8_E5M2" in str(fault(header(tmp_path, entry, 4)))


def test_bare_pickles_are_never_opened(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    error = fault(tmp_path)
    assert error.code == "M305"
    assert "convert it to safetensors" in str(error)


@pytest.mark.parametrize(
    "index", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "../x.safetensors"}}']
)
def test_a_broken_index_is_reported(tmp_path: Path, index: str) -> None:
    (sharded(tmp_path) / "model.safetensors.index.json").write_text(index)
    assert fault(tmp_path).code in ("M302", "M303")


def test_an_index_that_names_the_wrong_file_is_reported(tmp_path: Path) -> None:
    table = {"weight_map": {"a": SHARDS[1], "b": SHARDS[1]}}
    (sharded(tmp_path) / "model.safetensors.index.json").write_text(json.dumps(table))
    assert "tensor `a` is not in" in str(fault(tmp_path))


def test_several_files_without_an_index_are_reported(tmp_path: Path) -> None:
    (sharded(tmp_path) / "model.safetensors.index.json").unlink()
    assert fault(tmp_path).code == "M302"


def test_no_weights_at_all_names_dummy(tmp_path: Path) -> None:
    assert "load_format: dummy" in str(fault(tmp_path))


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00", "[" * 100_000])
def test_broken_json_is_reported_with_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelFilesError, match=r"config\.json"):
        read_json(tmp_path / "config.json")


def test_a_hub_id_is_looked_up_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc\n")
    snapshot = write_model(repository / "snapshots" / "abc")
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert locate("Qwen/Qwen3-0.6B") == snapshot
    assert locate("Qwen/Qwen3-0.6B", "abc") == snapshot
    assert locate("Qwen/Qwen3-0.6B", cache=str(tmp_path / "hub")) == snapshot
    with pytest.raises(ModelNotLocal, match="not on this machine"):
        locate("Qwen/Qwen3-0.6B", "v2")


@pytest.mark.parametrize(
    "name", ["./nowhere", "/nowhere", "~/nowhere", "a/b/c", "a b", "builtin:nothing", "builtin:../tiny"]
)
def test_what_is_neither_folder_nor_hub_id_is_reported(name: str) -> None:
    with pytest.raises(ModelFilesError) as caught:
        locate(name)
    assert not isinstance(caught.value, ModelNotLocal)


def test_a_file_or_an_empty_folder_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in (tmp_path, tmp_path / "file"):
        with pytest.raises(ModelFilesError, match=r"config\.json"):
            locate(str(name))


def test_hub_ids_are_distinguished_from_paths() -> None:
    assert is_hub_id("gpt2")
    assert is_hub_id("Qwen/Qwen3-0.6B")
    assert not any(map(is_hub_id, ["builtin:tiny", "./x", "/x", "~/x", "a/b/c", "a//b", ""]))


def test_a_revision_that_no_file_can_have_is_not_local(tmp_path: Path) -> None:
    """A NUL character once ended in a traceback."""
    with pytest.raises(ModelNotLocal):
        locate("no/such", "\0", str(tmp_path), "config.json")
