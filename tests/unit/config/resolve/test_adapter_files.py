"""Adapters that a deployment names are read and checked from headers, before any weights are loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.config import ModelFilesError, Resolved, load_deployment, read_model_files, resolve_deployment
from stoker.config.adapter_modules import Module, read_module
from stoker.config.checkpoint.safetensors import read_header
from stoker.config.examine import report_on

from ..deployments import MACHINE
from ..model_files import write_model, write_safetensors


def write_adapter(folder: Path, rank: int = 4, names: tuple[str, ...] = ("q_proj", "v_proj"), **config: Any) -> Path:
    """An adapter of `write_model`'s model, whose matrices are zeros."""
    folder.mkdir(parents=True)
    shapes: dict[str, list[int]] = {}
    for layer in range(2):
        for name in names:
            module = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            shapes |= {
                f"{module}.lora_A.weight": [rank, 16],
                f"{module}.lora_B.weight": [32 if name == "q_proj" else 16, rank],
            }
    write_safetensors(folder / "adapter_model.safetensors", shapes)
    written = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": list(names), **config}
    (folder / "adapter_config.json").write_text(json.dumps(written))
    return folder


def resolved(folder: Path, lora: dict[str, Any], **server: Any) -> Resolved:
    content = {"model": {"model": "./model"}, "lora": {"enable_lora": True, **lora}, "server": server}
    (folder / "deploy.yaml").write_text(json.dumps(content))
    deployment = load_deployment([folder / "deploy.yaml"], [], {})
    return resolve_deployment(deployment, read_model_files(deployment), MACHINE)


@pytest.mark.effect("lora.modules", "server.lora_modules", "lora.enable_lora")
def test_adapters_are_found_beside_the_file_that_names_them(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    for alpha, name in enumerate(("sql", "math", "chat")):
        write_adapter(tmp_path / "adapters" / name, lora_alpha=alpha)
    named = {"sql": {"path": "./adapters/sql", "base_model_name": "a/base"}, "org/math": {"path": "adapters/math"}}
    found = resolved(tmp_path, {"modules": named}, lora_modules=["chat=./adapters/chat"]).adapters
    assert [(each.name, each.folder, each.base_model_name) for each in found] == [
        ("sql", str(tmp_path / "adapters/sql"), "a/base"),
        ("org/math", str(tmp_path / "adapters/math"), None),
        ("chat", str(tmp_path / "adapters/chat"), None),
    ]
    assert {(each.max_rank, each.num_elements, each.num_layers) for each in found} == {(4, 640, 4)}
    assert len({each.digest for each in found}) == 3
    assert resolved(tmp_path, {}).adapters == ()


@pytest.mark.effect("lora.max_lora_rank")
def test_an_adapter_that_does_not_fit_is_an_error_at_its_option(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    write_adapter(tmp_path / "wide", rank=20)
    with pytest.raises(ModelFilesError) as caught:
        resolved(tmp_path, {"modules": {"wide": {"path": "./wide"}}})
    assert (caught.value.code, caught.value.option) == ("M311", "lora.modules")
    assert "has rank 20, and `lora.max_lora_rank` is 16; set `lora.max_lora_rank: 32`" in str(caught.value)
    found = resolved(tmp_path, {"modules": {"wide": {"path": "./wide"}}, "max_lora_rank": 32}).adapters
    assert found[0].max_rank == 20
    with pytest.raises(ModelFilesError) as caught:
        resolved(tmp_path, {}, lora_modules=["gone=./nowhere"])
    assert (caught.value.code, caught.value.option) == ("M301", "server.lora_modules")


def test_a_report_shows_the_line_that_names_the_adapter(tmp_path: Path) -> None:
    """`engine validate` and `engine plan` print it."""
    write_model(tmp_path / "model")
    write_adapter(tmp_path / "grouped", use_qalora=True)
    text = "model: {model: ./model}\nlora:\n  enable_lora: true\n  modules:\n    grouped: {path: ./grouped}\n"
    (tmp_path / "deploy.yaml").write_text(text)
    report = report_on([tmp_path / "deploy.yaml"], [], MACHINE, {})
    assert [(error.code, error.labels[0].span.line) for error in report.errors] == [("M310", 5)]
    assert "`use_qalora` is True" in report.errors[0].message


def test_memory_is_planned_for_the_adapters_that_are_kept_and_one_that_is_read(tmp_path: Path) -> None:
    """The copy that is read while others compute was not counted, nor the biases of adapters that have some."""
    write_model(tmp_path / "model")
    q_proj = {"lora_target_modules": ["q_proj"], "max_lora_rank": 8}
    found = [resolved(tmp_path, {**q_proj, "max_cpu_loras": number}).memory for number in (1, 2, 5)]
    one = 2 * (8 * (16 + 32) * 2 + 8 * 32)  # two layers: A, B in bfloat16, a bias and factors in float32
    assert [memory.adapter_bytes for memory in found] == [2 * one, 3 * one, 6 * one]


def test_memory_is_planned_for_whole_weights_of_adapters_that_are_named(tmp_path: Path) -> None:
    """The output layer and rows of the embedding have as many elements as they have, whatever the rank."""
    write_model(tmp_path / "model")
    vocabulary, hidden = resolved(tmp_path, {}).model_spec.vocab_size, 16
    file = write_adapter(tmp_path / "own", modules_to_save=["lm_head"]) / "adapter_model.safetensors"
    shapes = {name: list(tensor.shape) for name, tensor in read_header(file).items()}
    write_safetensors(file, shapes | {"base_model.model.lm_head.weight": [vocabulary, hidden]})
    named = {"modules": {"own": {"path": "./own"}}}
    found = resolved(tmp_path, named)
    more = found.memory.adapter_bytes - resolved(tmp_path, {}).memory.adapter_bytes
    assert found.adapters[0].num_saved_elements == vocabulary * hidden
    assert more == 2 * vocabulary * hidden * 2  # the copy that is kept, and one that is read, in bfloat16
    assert resolved(tmp_path, {**named, "lora_target_modules": ["q_proj"]}).adapters[0].num_saved_elements == 0


@pytest.mark.effect("lora.lora_target_modules")
def test_layers_that_are_not_named_are_left_out(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    write_adapter(tmp_path / "sql")
    named = {"modules": {"sql": {"path": "./sql"}}}
    found = resolved(tmp_path, {**named, "lora_target_modules": ["q_proj"]}).adapters
    assert [(each.num_layers, each.num_left_out) for each in found] == [(2, 2)]


@pytest.mark.effect("lora.lora_dtype", "lora.max_cpu_loras", "lora.max_loras")
def test_what_is_left_open_is_that_of_the_model_and_of_a_step(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    found = resolved(tmp_path, {"max_loras": 3}).lora
    assert (found.max_cpu_loras, found.lora_dtype) == (3, "bfloat16")


def test_a_list_of_objects_may_be_one_text() -> None:
    """The form of Kubernetes manifests and of variables."""
    items = '[{"name": "a", "path": "./x"}, {"name": "b", "path": "org/b", "base_model_name": "m"}, "c=y=z"]'
    deployment = load_deployment([], ["--model", "x", "--lora-modules", items], {})
    assert [read_module(text) for text in deployment.server.lora_modules] == [
        Module("a", "./x", None, "server.lora_modules"),
        Module("b", "org/b", "m", "server.lora_modules"),
        Module("c", "y=z", None, "server.lora_modules"),
    ]
