"""Section `load`: the same model from every format and reader."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from stoker.config import ConfigError, ModelFilesError
from stoker.config.resolve.resolved import Resolved
from stoker.engine.runner import weights

from .conftest import Saved
from .engine import Engine, resolved

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12]]


def tokens(folder: Path, place: Path, phase: Callable[[str], None] | None = None, **load: Any) -> list[list[int]]:
    return Engine(resolved(folder, place, load=load), phase).generate(PROMPTS)


def as_torch_files(model: PreTrainedModel, folder: Path) -> Path:
    """What save_pretrained wrote before safetensors: one .bin, of a state dict with its metadata."""
    folder.mkdir(exist_ok=True)
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder


@pytest.fixture
def expected(saved: Callable[[str], Saved], tmp_path: Path) -> list[list[int]]:
    return tokens(saved("qwen3 untied")[1], tmp_path)


@pytest.mark.effect("load.load_format")
def test_torchs_files_give_the_same_model(saved: Callable[[str], Saved], tmp_path: Path, expected: list[list[int]]):
    folder = as_torch_files(saved("qwen3 untied")[0], tmp_path / "torch")
    settings = resolved(folder, tmp_path)
    assert settings.load.load_format == "pt"
    assert settings.origin("load.load_format").name == "R079"
    assert Engine(settings).generate(PROMPTS) == expected


def test_a_transposed_tensor_of_a_shared_storage_is_read_right(
    saved: Callable[[str], Saved], tmp_path: Path, expected: list[list[int]]
):
    folder = as_torch_files(saved("qwen3 untied")[0], tmp_path / "torch")
    tensors = saved("qwen3 untied")[0].state_dict()
    tensors = {name: value.T.contiguous().T if value.ndim == 2 else value for name, value in tensors.items()}
    torch.save(tensors, folder / "pytorch_model.bin")
    assert tokens(folder, tmp_path) == expected


@pytest.mark.effect("load.load_format", "load.model_loader_extra_config")
@pytest.mark.slow
def test_the_numpy_cache_is_written_once_and_then_read(
    saved: Callable[[str], Saved], tmp_path: Path, expected: list[list[int]]
):
    folder = as_torch_files(saved("qwen3 untied")[0], tmp_path / "torch")
    assert tokens(folder, tmp_path, load_format="npcache") == expected
    index = folder / "npcache" / "index.json"
    written = index.stat().st_mtime_ns
    assert tokens(folder, tmp_path, load_format="npcache") == expected
    assert index.stat().st_mtime_ns == written
    elsewhere = tmp_path / "elsewhere"
    settings = {"folder": str(elsewhere)}
    assert tokens(folder, tmp_path, load_format="npcache", model_loader_extra_config=settings) == expected
    names = [entry["name"] for entry in json.loads((elsewhere / "index.json").read_text())["tensors"]]
    assert len(list(elsewhere.glob("*.npy"))) == len(names)
    other = saved("qwen3 untied")[0].state_dict()
    torch.save({name: value * 1.5 for name, value in other.items()}, folder / "pytorch_model.bin")
    assert tokens(folder, tmp_path, load_format="npcache") == tokens(folder, tmp_path, load_format="pt")
    assert index.stat().st_mtime_ns != written


def test_a_numpy_cache_that_cannot_be_written_names_its_folder(saved: Callable[[str], Saved], tmp_path: Path):
    folder = as_torch_files(saved("qwen3 untied")[0], tmp_path / "torch")
    (tmp_path / "file").write_text("in the way")
    settings = {"folder": str(tmp_path / "file" / "cache")}
    with pytest.raises(ModelFilesError, match=r"file/cache: the NumPy cache cannot be written: Not a directory"):
        tokens(folder, tmp_path, load_format="npcache", model_loader_extra_config=settings)


@pytest.mark.parametrize("name", ["notes.txt", "00000.npy", "index.json.bak"])
def test_a_folder_that_is_no_numpy_cache_is_left_alone(saved: Callable[[str], Saved], tmp_path: Path, name: str):
    """The cache once replaced other content of the folder."""
    folder = as_torch_files(saved("qwen3 untied")[0], tmp_path / "torch")
    mine = tmp_path / "mine" / name
    mine.parent.mkdir()
    mine.write_text("mine")
    settings = {"folder": str(mine.parent)}
    with pytest.raises(ModelFilesError, match="mine: not empty, and not a NumPy cache: it is not changed"):
        tokens(folder, tmp_path, load_format="npcache", model_loader_extra_config=settings)
    assert mine.read_text() == "mine"


@pytest.mark.effect("load.load_format", "load.model_loader_extra_config")
def test_a_sharded_state_with_fused_weights_gives_the_same_model(
    saved: Callable[[str], Saved], tmp_path: Path, expected: list[list[int]]
):
    source = saved("qwen3 untied")[1]
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "config.json").write_text((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    for layer in range(2):
        for prefix, parts, whole in (
            ("self_attn", ("q_proj", "k_proj", "v_proj"), "qkv_proj"),
            ("mlp", ("gate_proj", "up_proj"), "gate_up_proj"),
        ):
            name = f"model.layers.{layer}.{prefix}"
            tensors[f"{name}.{whole}.weight"] = torch.cat([tensors.pop(f"{name}.{part}.weight") for part in parts])
    names = sorted(tensors)
    for part in (0, 1):
        save_file({name: tensors[name] for name in names[part::2]}, folder / f"state_0_{part}.safetensors")
    load = {"load_format": "sharded_state", "model_loader_extra_config": {"pattern": "state_{rank}_{part}.safetensors"}}
    assert tokens(folder, tmp_path, **load) == expected
    save_file(tensors, folder / "state_0_0.safetensors")
    with pytest.raises(
        ModelFilesError, match=r"state_0_1\.safetensors: tensor `[\w.]+` is in state_0_0\.safetensors too"
    ):
        tokens(folder, tmp_path, **load)
    (folder / "state_0_1.safetensors").unlink()
    tensors["model.layers.0.self_attn.qkv_proj.weight"] = torch.zeros(3, 64)
    save_file(tensors, folder / "state_0_0.safetensors")
    with pytest.raises(ModelFilesError, match=r"qkv_proj\.weight` has shape \[3, 64\]; q_proj, k_proj, v_proj need"):
        tokens(folder, tmp_path, **load)


@pytest.mark.effect("load.model_loader_extra_config")
def test_dummy_weights_have_the_given_deviation(saved: Callable[[str], Saved], tmp_path: Path):
    def with_deviation(**settings: float) -> list[list[int]]:
        return tokens(saved("llama")[1], tmp_path, load_format="dummy", model_loader_extra_config=settings)

    assert with_deviation() == with_deviation(deviation=0.02)
    assert with_deviation(deviation=0.3) != with_deviation()
    with pytest.raises(ConfigError, match="the dummy loader has no setting `deviatoin`; did you mean `deviation`"):
        with_deviation(deviatoin=0.3)


@pytest.mark.effect("load.ignore_patterns")
def test_files_that_are_ignored_are_not_read(saved: Callable[[str], Saved], tmp_path: Path, expected: list[list[int]]):
    folder = as_torch_files(saved("qwen3 untied")[0], tmp_path / "both")
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelFilesError, match=r"model\.safetensors"):
        tokens(folder, tmp_path)
    assert tokens(folder, tmp_path, ignore_patterns=["*.safetensors"]) == expected


@pytest.mark.effect("load.pt_load_map_location")
def test_a_device_that_the_map_leaves_out_stops_the_start(saved: Callable[[str], Saved], tmp_path: Path):
    folder = as_torch_files(saved("qwen3 untied")[0], tmp_path / "torch")
    file = folder / "pytorch_model.bin"
    file.write_bytes(file.read_bytes().replace(b"X\x03\x00\x00\x00cpu", b"X\x03\x00\x00\x00xpu"))
    assert tokens(folder, tmp_path, pt_load_map_location={"xpu": "cpu"}) == tokens(folder, tmp_path)
    with pytest.raises(ModelFilesError, match="was saved from xpu"):
        tokens(folder, tmp_path, pt_load_map_location={"cuda:0": "cpu"})


@pytest.mark.effect("load.safetensors_load_strategy")
def test_eager_and_lazy_reading_give_the_same_model(
    saved: Callable[[str], Saved], tmp_path: Path, expected: list[list[int]]
):
    folder = saved("qwen3 untied")[1]
    assert tokens(folder, tmp_path, safetensors_load_strategy="eager") == expected


@pytest.mark.effect("parallel.max_parallel_loading_workers")
@pytest.mark.slow
def test_several_parts_are_read_at_a_time(saved: Callable[[str], Saved], tmp_path: Path, expected: list[list[int]]):
    folder = saved("qwen3 untied")[1]

    for workers in (None, 1, 3):
        settings = resolved(folder, tmp_path, parallel={"max_parallel_loading_workers": workers})
        engine, num_readers = _watched(settings, workers or 1)
        assert engine.generate(PROMPTS) == expected
        assert num_readers == (workers or 1)


def _watched(settings: Resolved, expected: int) -> tuple[Engine, int]:
    """An engine, and how many threads read its weights, each of which waits for `expected` of them to be reading."""
    meeting = threading.Barrier(expected, timeout=10)
    readers: set[int] = set()

    class Meeting(weights.LazyReader):
        def read(self, file: Path, offset: int, into: memoryview, name: str) -> None:
            if threading.get_ident() not in readers:
                readers.add(threading.get_ident())
                meeting.wait()
            super().read(file, offset, into, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "LazyReader", Meeting)
        return Engine(settings), len(readers)


@pytest.mark.parametrize(("has_terminal", "wanted"), [(True, True), (True, False), (False, True)])
@pytest.mark.effect("load.use_tqdm_on_load")
def test_progress_is_reported_on_a_terminal(
    saved: Callable[[str], Saved], tmp_path: Path, has_terminal: bool, wanted: bool
):
    settings = resolved(saved("llama")[1], tmp_path, load={"use_tqdm_on_load": wanted})
    machine = settings.machine.model_copy(update={"has_terminal": has_terminal})
    phases: list[str] = []
    Engine(settings.model_copy(update={"machine": machine}), phases.append)
    shares = [int(phase.split()[1]) for phase in phases if phase.startswith("weights:")]
    assert shares == sorted(set(shares))
    assert (len(shares) > 3 and shares[-1] == 100) == (has_terminal and wanted)
