"""Checkpoints on disk: whole, in shards, damaged, or not there at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from stoker.config import ModelFilesError

from .checkpoints import save
from .conftest import Saved
from .engine import Engine, resolved

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12]]


def test_a_sharded_checkpoint_equals_a_single_file(saved: Callable[[str], Saved], tmp_path: Path):
    model, folder = saved("qwen2")
    sharded = save(model, tmp_path / "sharded", max_shard_size="60KB")
    assert len(list(sharded.glob("*.safetensors"))) > 3
    whole = Engine(resolved(folder, tmp_path)).generate(PROMPTS)
    assert Engine(resolved(sharded, tmp_path)).generate(PROMPTS) == whole


@pytest.mark.effect("load.load_format", "model.seed")
def test_dummy_weights_need_only_config_json_and_follow_the_seed(saved: Callable[[str], Saved], tmp_path: Path):
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "config.json").write_text((saved("qwen2")[1] / "config.json").read_text())

    def tokens(seed: int) -> list[list[int]]:
        settings = resolved(folder, tmp_path, load={"load_format": "dummy"}, model={"seed": seed})
        return Engine(settings).generate(PROMPTS)

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)


def test_info_tells_what_was_loaded(saved: Callable[[str], Saved], tmp_path: Path):
    model, folder = saved("qwen3")
    phases: list[str] = []
    settings = resolved(folder, tmp_path)
    engine = Engine(settings, phases.append)
    info = engine.runner.info()
    assert info.weights_bytes == 4 * sum(parameter.numel() for parameter in model.parameters())
    assert info.kv_cache_bytes == 64 * 8 * settings.memory.kv_bytes_per_token
    assert (info.num_blocks, info.block_size, info.vocab_size, info.max_model_len) == (64, 8, 97, 64)
    assert list(info.phases) == phases == ["kernels", "weights", "kv cache", "warm-up"]
    assert info.kernels


@pytest.fixture
def copy(saved: Callable[[str], Saved], tmp_path: Path) -> Path:
    """A sharded Llama that a test may damage."""
    return save(saved("llama")[0], tmp_path / "copy", max_shard_size="60KB")


def refused(folder: Path, place: Path) -> str:
    with pytest.raises(ModelFilesError) as caught:
        Engine(resolved(folder, place))
    return str(caught.value)


def test_a_truncated_shard_is_refused_by_name(copy: Path, tmp_path: Path):
    shard = sorted(copy.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-100])
    assert shard.name in refused(copy, tmp_path)


def test_a_missing_shard_is_refused_by_name(copy: Path, tmp_path: Path):
    shard = sorted(copy.glob("*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refused(copy, tmp_path)


def test_a_missing_tensor_is_refused_by_name(saved: Callable[[str], Saved], tmp_path: Path):
    folder = save(saved("llama")[0], tmp_path / "holed")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    assert "`model.layers.1.mlp.up_proj.weight`" in refused(folder, tmp_path)


def test_a_config_that_does_not_fit_the_weights_is_refused_with_both_shapes(
    saved: Callable[[str], Saved], tmp_path: Path
):
    folder = save(saved("llama")[0], tmp_path / "odd")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 128}))
    message = refused(folder, tmp_path)
    assert "gate_proj.weight` has shape [96, 64]" in message
    assert "[128, 64]" in message


def test_an_unknown_architecture_is_refused_with_the_list_of_known_ones(saved: Callable[[str], Saved], tmp_path: Path):
    folder = save(saved("llama")[0], tmp_path / "unknown")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["RwkvForCausalLM"]}))
    message = refused(folder, tmp_path)
    assert "RwkvForCausalLM" in message
    assert "docs/reference/models.md" in message
