"""Which files a format takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stoker.config import ModelFilesError
from stoker.config.checkpoint.layout import read_weight_files

from ..model_files import write_safetensors


def torch_file(path: Path, name: str = "a") -> Path:
    torch.save({name: torch.zeros(5)}, path)
    return path


def fault(folder: Path, *arguments: object) -> str:
    with pytest.raises(ModelFilesError) as caught:
        read_weight_files(folder, *arguments)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.effect("load.load_format", "load.ignore_patterns")
def test_auto_takes_safetensors_and_torchs_files_where_there_are_none(tmp_path: Path) -> None:
    torch_file(tmp_path / "pytorch_model.bin")
    torch_file(tmp_path / "training_args.bin")
    assert (read_weight_files(tmp_path).format, read_weight_files(tmp_path).count()) == ("pt", {"F32": 5})
    write_safetensors(tmp_path / "model.safetensors", {"a": [3]})
    assert read_weight_files(tmp_path).names == ("model.safetensors",)
    assert read_weight_files(tmp_path, "pt").names == ("pytorch_model.bin",)
    assert read_weight_files(tmp_path, "npcache").format == "npcache"
    assert read_weight_files(tmp_path, "auto", ["*.safetensors"]).names == ("pytorch_model.bin",)
    assert "no weight files (*.safetensors)" in fault(tmp_path, "safetensors", ["*.safetensors"])


def test_shards_of_torch_have_an_index_too(tmp_path: Path) -> None:
    names = [f"pytorch_model-0000{part}-of-00002.bin" for part in (1, 2)]
    for tensor, name in zip("ab", names, strict=True):
        torch_file(tmp_path / name, tensor)
    assert "2 pt files, but no pytorch_model.bin.index.json" in fault(tmp_path)
    table = {"weight_map": dict(zip("ab", names, strict=True))}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(table))
    assert read_weight_files(tmp_path).names == tuple(names)
    assert f"tensor `b` is in {names[1]}, which `load.ignore_patterns` leaves out" in fault(
        tmp_path, "auto", ["*-00002-*"]
    )


@pytest.mark.effect("load.model_loader_extra_config")
def test_a_sharded_state_is_the_parts_of_rank_0(tmp_path: Path) -> None:
    for part in (0, 1):
        write_safetensors(tmp_path / f"model-rank-0-part-{part}.safetensors", {f"t{part}": [2]})
        write_safetensors(tmp_path / f"my_0_{part}.safetensors", {f"m{part}": [2]})
    assert read_weight_files(tmp_path, "sharded_state").tensors.keys() == {"t0", "t1"}
    named = read_weight_files(tmp_path, "sharded_state", (), {"pattern": "my_{rank}_{part}.safetensors"})
    assert named.tensors.keys() == {"m0", "m1"}
    (tmp_path / "my_0_1.safetensors").unlink()
    assert "`load.load_format: sharded_state` reads files by rank" in fault(tmp_path, "auto", ["my*"])


def test_a_sharded_state_of_several_ranks_or_with_a_hole_is_refused(tmp_path: Path) -> None:
    assert "no weight files (model-rank-0-part-0.safetensors and so on)" in fault(tmp_path, "sharded_state")
    for part in (0, 2):
        write_safetensors(tmp_path / f"model-rank-0-part-{part}.safetensors", {f"t{part}": [2]})
    assert "model-rank-0-part-1.safetensors: missing, though there are 2 parts" in fault(tmp_path, "sharded_state")
    write_safetensors(tmp_path / "model-rank-1-part-0.safetensors", {"t": [2]})
    assert "saved by several ranks" in fault(tmp_path, "sharded_state")
