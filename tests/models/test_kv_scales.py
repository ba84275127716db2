"""Scales of an fp8 cache: a model whose keys are 2048 times as large, and its queries as much smaller, is the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("triton")

from stoker.config import ModelFilesError
from stoker.config.checkpoint.kv_scales import kv_scale_tensors
from stoker.config.checkpoint.stored import StoredTensor

from .conftest import Saved
from .test_device_runner import GREEDY, PROMPTS, core, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter")
FACTOR = 2048.0  # a power of two: codes and products are the same, bit for bit
FP8: dict[str, Any] = {"kv_cache_dtype": "fp8"}
ASKED = [replace(GREEDY, max_tokens=3, logprobs=3)] * len(PROMPTS)


def copied(folder: Path, target: Path, added: dict[str, torch.Tensor]) -> Path:
    """The model with larger keys and smaller queries."""
    target.mkdir()
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if name.endswith("k_norm.weight"):
            tensors[name] = tensors[name] * FACTOR
        elif name.endswith("q_norm.weight"):
            tensors[name] = tensors[name] / FACTOR
    save_file(tensors | added, target / "model.safetensors", metadata={"format": "pt"})
    return target


def layer_names(folder: Path) -> list[str]:
    count = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    return [f"model.layers.{index}.self_attn" for index in range(count)]


def logprobs_of(folder: Path, place: Path, cache: dict[str, Any]) -> list[list[float]]:
    """With torch's kernels, which are fast here; Triton's are compared with them in tests/kernels."""
    engine = core(folder, place, "cuda", model={"batch_invariant": True}, cache=cache)
    return [
        [float(value) for entry in output.logprobs or [] for value in entry.logprobs] for output in run(engine, ASKED)
    ]


@pytest.mark.parametrize("ends", [("k_scale", "v_scale"), ("k_proj.k_scale", "v_proj.v_scale"),
                                  ("k_proj.output_scale", "v_proj.output_scale")])  # fmt: skip
@pytest.mark.slow
def test_scales_of_a_checkpoint_are_used(ends: tuple[str, str], saved: Callable[[str], Saved], tmp_path: Path):
    folder = saved("qwen3")[1]
    scales = {
        f"{layer}.{end}": torch.tensor(factor)
        for layer in layer_names(folder)
        for end, factor in zip(ends, (FACTOR, 1.0), strict=True)
    }
    larger, with_scales = copied(folder, tmp_path / "larger", {}), copied(folder, tmp_path / "scaled", scales)
    expected = logprobs_of(folder, tmp_path, FP8)
    assert logprobs_of(larger, tmp_path, FP8) != expected  # keys are clipped
    assert logprobs_of(with_scales, tmp_path, FP8) == expected
    assert largest_difference(logprobs_of(with_scales, tmp_path, {}), logprobs_of(folder, tmp_path, {})) < 1e-4


def largest_difference(found: list[list[float]], expected: list[list[float]]) -> float:
    return max(
        abs(a - b) for ours, others in zip(found, expected, strict=True) for a, b in zip(ours, others, strict=True)
    )


@pytest.mark.effect("cache.calculate_kv_scales")
@pytest.mark.slow
def test_computed_scales_keep_large_keys(saved: Callable[[str], Saved], tmp_path: Path):
    folder = copied(saved("qwen3")[1], tmp_path / "larger", {})
    exact = logprobs_of(folder, tmp_path, {})
    clipped = largest_difference(logprobs_of(folder, tmp_path, FP8), exact)
    computed = largest_difference(logprobs_of(folder, tmp_path, FP8 | {"calculate_kv_scales": True}), exact)
    assert computed < clipped / 3


@pytest.mark.parametrize("family", ["gemma3", "qwen3_next"])
@pytest.mark.quick_cases(1)
def test_computed_scales_of_groups_of_layers(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    """Windows, and recurrent states, which the prompt of random tokens must not change."""
    folder = saved(family)[1]
    exact = logprobs_of(folder, tmp_path, {})
    assert largest_difference(logprobs_of(folder, tmp_path, FP8 | {"calculate_kv_scales": True}), exact) < 0.5


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_none_is_refused_with_its_tensor(
    wrong: float, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    folder = saved("qwen3")[1]
    name = layer_names(folder)[0]
    added = {f"{name}.k_scale": torch.tensor(wrong), f"{name}.v_scale": torch.tensor(1.0)}
    with pytest.raises(ModelFilesError, match=r"model\.safetensors: tensor `model\.layers\.0\.self_attn\.k_scale`"):
        logprobs_of(copied(folder, tmp_path / "wrong", added), tmp_path, FP8)


def test_names_of_the_tensors() -> None:
    def of(*names: str, dtype: str = "F32") -> list[tuple[int, str, str]]:
        stored = {name: StoredTensor(Path("a"), dtype, (), 0) for name in names}
        return [(layer, each.keys, each.values) for layer, each in kv_scale_tensors(stored).items()]

    assert of("model.layers.3.self_attn.kv_scale") == [(3, *["model.layers.3.self_attn.kv_scale"] * 2)]
    both = (
        "language_model.model.layers.10.self_attn.attn.k_scale",
        "language_model.model.layers.10.self_attn.attn.v_scale",
    )
    assert of(*both) == [(10, *both)]
    assert of(both[0]) == []
    assert of(*both, dtype="I8") == []
    assert of("model.layers.1.mlp.up_proj.output_scale", "model.layers.1.self_attn.q_scale") == []
