"""Ranks that have whole experts compute what one process does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.slow_cases import slow_but

from stoker.config import Resolved
from stoker.model.expert_placement import with_placed_experts
from stoker.model.tensor_parallel import tensor_parallel_problem

from .checkpoints import FAMILIES, build, save
from .conftest import Saved
from .engine import Engine, resolved
from .ranks import divided
from .test_tensor_parallel import outputs

MIXTURES = [name for name, values in FAMILIES.items() if "experts" in " ".join((name, *values)) or "moe" in name]


def placed(folder: Path, place: Path, size: int = 2, strategy: str = "linear", **more: object) -> Resolved:
    parallel = {"tensor_parallel_size": size, "enable_expert_parallel": True, "expert_placement_strategy": strategy}
    return resolved(folder, place, parallel={**parallel, **more})


def compare(settings: Resolved, alone: Resolved) -> None:
    expected = outputs(Engine(alone))
    with divided(settings) as engine:
        found = outputs(engine)
    for (tokens, logprobs), (its, theirs) in zip(found, expected, strict=True):
        assert tokens == its
        assert logprobs == pytest.approx(theirs, abs=1e-4)


@pytest.mark.effect("parallel.enable_expert_parallel")
@pytest.mark.parametrize("family", MIXTURES)
@pytest.mark.quick_cases(1)
def test_two_ranks_of_whole_experts_compute_what_one_process_does(
    family: str, saved: Callable[[str], Saved], tmp_path: Path
):
    _, folder = saved(family)
    alone = resolved(folder, tmp_path)
    if reason := tensor_parallel_problem(with_placed_experts(alone.model_spec, "linear"), 2):
        pytest.skip(reason)
    settings = placed(folder, tmp_path)
    assert settings.memory.weights_bytes < alone.memory.weights_bytes
    compare(settings, alone)


@pytest.mark.effect("parallel.expert_placement_strategy")
@pytest.mark.parametrize("family", slow_but(["qwen3_moe", "gpt_oss", "deepseek_v3", "llama4"], "qwen3_moe"))
def test_every_second_expert(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    _, folder = saved(family)
    alone = resolved(folder, tmp_path)
    if reason := tensor_parallel_problem(with_placed_experts(alone.model_spec, "round_robin"), 2):
        pytest.skip(reason)
    compare(placed(folder, tmp_path, strategy="round_robin"), alone)


@pytest.mark.parametrize("strategy", ["linear", "round_robin"])
@pytest.mark.quick_cases(1)
def test_ranks_need_not_have_equally_many_experts(strategy: str, tmp_path: Path):
    """Nor an expert whose width they divide."""
    folder = save(build("qwen3_moe", num_experts=5, moe_intermediate_size=33), tmp_path / "model")
    compare(placed(folder, tmp_path, 4, strategy), resolved(folder, tmp_path))


@pytest.mark.slow
def test_over_gloo_and_in_stages(saved: Callable[[str], Saved], tmp_path: Path):
    _, folder = saved("qwen3_moe")
    alone = resolved(folder, tmp_path)
    compare(placed(folder, tmp_path, disable_custom_all_reduce=True), alone)
    compare(placed(folder, tmp_path, pipeline_parallel_size=2), alone)


def test_quantised_experts(saved: Callable[[str], Saved], tmp_path: Path):
    """Whole experts have the codes of one process; parts of experts have other groups."""
    _, folder = saved("qwen3_moe")
    alone = resolved(folder, tmp_path, model={"quantization": "int8"})
    parallel = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    settings = resolved(folder, tmp_path, model={"quantization": "int8"}, parallel=parallel)
    expected = [logprobs[0] for _, logprobs in outputs(Engine(alone))]
    with divided(settings) as engine:
        assert [logprobs[0] for _, logprobs in outputs(engine)] == pytest.approx(expected, abs=0.2)
