"""Section `model`: what the options about the model's shape and precision do to what it computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stoker.config import ConfigError, ModelFilesError

from .checkpoints import build, reference_greedy, save
from .conftest import Saved
from .engine import Engine, resolved

PROMPTS = [[5, 6, 7], list(range(20, 40))]
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128}


def tokens(folder: Path, place: Path, **model: Any) -> list[list[int]]:
    return Engine(resolved(folder, place, model=model)).generate(PROMPTS)


@pytest.mark.effect("model.rope_theta", "model.rope_scaling", "model.hf_overrides")
def test_rope_options_are_as_if_config_json_said_so(saved: Callable[[str], Saved], tmp_path: Path):
    plain = saved("llama")[1]
    written = save(build("llama", rope_parameters={"rope_theta": 300.0, **YARN}), tmp_path / "written")
    expected = tokens(written, tmp_path)
    assert expected != tokens(plain, tmp_path)
    assert tokens(plain, tmp_path, rope_theta=300, rope_scaling=YARN) == expected
    assert tokens(plain, tmp_path, hf_overrides={"rope_theta": 300}, rope_scaling=YARN) == expected
    assert tokens(plain, tmp_path, hf_overrides={"rope_parameters": {"rope_theta": 300, **YARN}}) == expected


def test_rope_options_replace_the_old_names_of_config_json_too(saved: Callable[[str], Saved], tmp_path: Path):
    written = save(build("llama", rope_parameters={"rope_theta": 300.0, **YARN}), tmp_path / "written")
    expected = tokens(written, tmp_path)
    config = json.loads((written / "config.json").read_text())
    del config["rope_parameters"]
    config |= {"rope_theta": 7.0, "rope_scaling": {"rope_type": "linear", "factor": 9.0}}
    (written / "config.json").write_text(json.dumps(config))
    assert tokens(written, tmp_path, rope_theta=300, rope_scaling=YARN) == expected


@pytest.mark.effect("model.rope_scaling", "model.max_model_len")
def test_a_scaling_stretches_the_models_limit(saved: Callable[[str], Saved], tmp_path: Path):
    folder = saved("llama")[1]
    with pytest.raises(ConfigError, match="the model supports 128 tokens"):
        resolved(folder, tmp_path, model={"max_model_len": 256})
    assert resolved(folder, tmp_path, model={"max_model_len": 256, "rope_scaling": YARN}).model.max_model_len == 256
    assert resolved(folder, tmp_path, model={"max_model_len": "auto"}).model.max_model_len == 128
    assert Engine(resolved(folder, tmp_path, model={"max_model_len": 32})).runner.info().max_model_len == 32


@pytest.mark.effect("model.disable_sliding_window")
def test_without_the_window_all_is_seen_and_the_context_ends_there(saved: Callable[[str], Saved], tmp_path: Path):
    folder = saved("mistral")[1]  # a window of 6
    bounded = resolved(folder, tmp_path, model={"disable_sliding_window": True, "max_model_len": "auto"})
    assert bounded.model.max_model_len == 6
    assert not any(bounded.model_spec.windows)
    with pytest.raises(ConfigError, match="the model supports 6 tokens"):
        resolved(folder, tmp_path, model={"disable_sliding_window": True, "max_model_len": 64})
    inside = Engine(resolved(folder, tmp_path, model={"max_model_len": 6})).generate([[5, 6, 7]])
    assert Engine(bounded).generate([[5, 6, 7]]) == inside


@pytest.mark.effect("model.hf_config_path", "model.model")
def test_config_json_may_come_from_elsewhere(saved: Callable[[str], Saved], tmp_path: Path):
    source = saved("llama")[1]
    expected = tokens(source, tmp_path)
    weights, shape = tmp_path / "weights", tmp_path / "shape"
    weights.mkdir()
    shape.mkdir()
    (weights / "model.safetensors").symlink_to(source / "model.safetensors")
    (shape / "config.json").write_text((source / "config.json").read_text())
    with pytest.raises(ModelFilesError, match=r"holds no config\.json"):
        tokens(weights, tmp_path)
    assert tokens(weights, tmp_path, hf_config_path=str(shape)) == expected
    settings = resolved(weights, tmp_path, model={"hf_config_path": "./shape"})  # beside the manifest
    assert settings.model.hf_config_path == str(shape)


@pytest.mark.effect("model.dtype")
def test_the_format_decides_the_bytes_of_the_weights(saved: Callable[[str], Saved], tmp_path: Path):
    folder = saved("llama")[1]

    def loaded(dtype: str) -> tuple[str, int]:
        info = Engine(resolved(folder, tmp_path, model={"dtype": dtype})).runner.info()
        return info.dtype, info.weights_bytes

    name, size = loaded("float32")
    assert loaded("float") == (name, size) == ("float32", size)
    name, half = loaded("bfloat16")  # 12 of 16 bits where the CPU unpacks them fast enough
    assert name == "bfloat16"
    assert size * 3 // 8 <= half <= size // 2


def test_a_model_that_needs_code_of_its_repository_names_the_option(saved: Callable[[str], Saved], tmp_path: Path):
    folder = save(saved("llama")[0], tmp_path / "own-code")
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    config |= {
        "architectures": ["MineForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_mine.MineForCausalLM"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFilesError, match=r"`model\.trust_remote_code: true` with") as caught:
        resolved(folder, tmp_path)
    assert (caught.value.code, caught.value.exit_code) == ("M304", 3)
    plain = {"architectures": ["LlamaForCausalLM"]}
    assert tokens(folder, tmp_path, hf_overrides=plain) == tokens(saved("llama")[1], tmp_path)


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
@pytest.mark.parametrize("model_impl", ["native", "transformers"])
@pytest.mark.quick_cases(1)
def test_layers_that_draft_are_not_loaded(family: str, model_impl: str, saved: Callable[[str], Saved], tmp_path: Path):
    """The published checkpoints have one after the last: `its weight files have 5 layers` refused them."""
    model, plain = saved(family)
    folder = save(model, tmp_path / "drafts")
    tensors = load_file(folder / "model.safetensors")
    last, width = model.config.num_hidden_layers - 1, model.config.hidden_size
    draft = {
        name.replace(f"layers.{last}.", f"layers.{last + 1}."): tensor.clone()
        for name, tensor in tensors.items()
        if f"layers.{last}." in name
    }
    prefix = f"model.layers.{last + 1}"
    draft[f"{prefix}.eh_proj.weight"] = torch.ones(width, 2 * width)
    draft |= {f"{prefix}.{name}.weight": torch.ones(width) for name in ("enorm", "hnorm", "shared_head.norm")}
    save_file({**tensors, **draft}, folder / "model.safetensors", {"format": "pt"})
    assert tokens(folder, tmp_path, model_impl=model_impl) == tokens(plain, tmp_path, model_impl=model_impl)
    (note,) = resolved(folder, tmp_path, model={"model_impl": "native"}).model_files.notes
    assert note.endswith("of draft layers in the weight files are not loaded: this build does not draft with them")


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "deepseek_v3"])
@pytest.mark.quick_cases(1)
def test_experts_may_be_saved_in_one_tensor(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    """`save_original_format=False` of transformers: in other families than those that publish such files, they were
    refused."""
    model, plain = saved(family)
    folder = save(model, tmp_path / "fused", save_original_format=False)
    assert any(name.endswith("experts.gate_up_proj") for name in load_file(folder / "model.safetensors"))
    assert tokens(folder, tmp_path) == tokens(plain, tmp_path)


def test_projections_for_an_index_have_no_bias_where_others_have_one(tmp_path: Path):
    """A KeyError, and before that a refusal: the matrices of one product may have a bias, or not."""
    model = build("deepseek_v32", attention_bias=True)
    expected = [reference_greedy(model, prompt, 24) for prompt in PROMPTS]
    assert tokens(save(model, tmp_path / "biased"), tmp_path) == expected
