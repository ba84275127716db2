"""Experts that move between ranks while these serve: the same tokens, and a more even load."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.slow_cases import slow_but

from stoker.config import Resolved
from stoker.engine.host.pages import give_back_free
from stoker.engine.layers.expert_places import ExpertPlaces
from stoker.engine.runner import expert_balancer
from stoker.engine.runner.expert_balancer import ExpertBalancer
from stoker.model.expert_placement import Layout

from .checkpoints import build, save
from .conftest import Saved
from .engine import Engine, resolved
from .ranks import DividedEngine, divided
from .test_tensor_parallel import outputs

BALANCE = {"window_size": 3, "step_interval": 5, "num_redundant_experts": 2}
ALONE = {"tensor_parallel_size": 2, "enable_expert_parallel": True}


def moving(folder: Path, place: Path, balance: dict[str, Any] = BALANCE, **sections: dict[str, Any]) -> Resolved:
    parallel = {**ALONE, "enable_eplb": True, "eplb_config": balance}
    return resolved(folder, place, **{**sections, "parallel": {**parallel, **sections.get("parallel", {})}})


def balancer_of(engine: DividedEngine) -> ExpertBalancer:
    found = engine.own.made.moves.balancer
    assert found is not None
    return found


def places_of(engine: DividedEngine) -> list[ExpertPlaces]:
    return [expert_balancer.places_of(layer) for layer in balancer_of(engine)._layers]


def layouts(engine: DividedEngine) -> list[Layout]:
    return [places.layout for places in places_of(engine)]


def compare_while_experts_move(settings: Resolved, alone: Resolved, within: float = 1e-4) -> None:
    """The first run begins with the first layout; experts move in it and in the second one. within: of logprobs."""
    one_process = Engine(alone)
    with divided(settings) as engine:
        first = layouts(engine)
        for _ in range(2):
            for (tokens, logprobs), (its, theirs) in zip(outputs(engine), outputs(one_process), strict=True):
                assert tokens == its
                assert logprobs == pytest.approx(theirs, abs=within)
        assert layouts(engine) != first
        is_captured = not settings.parallel.disable_custom_all_reduce
        assert engine.own.launches().captured > 0 or not is_captured  # replayed steps read where experts are


@pytest.mark.effect("parallel.enable_eplb")
@pytest.mark.parametrize("family", slow_but(["qwen3_moe", "gpt_oss", "deepseek_v3", "gemma4 experts"], "qwen3_moe"))
def test_tokens_are_those_of_one_process_before_during_and_after_moves(
    family: str, saved: Callable[[str], Saved], tmp_path: Path
):
    _, folder = saved(family)
    compare_while_experts_move(moving(folder, tmp_path), resolved(folder, tmp_path))


@pytest.mark.slow
def test_experts_in_four_bits_move_as_they_are_packed(tmp_path: Path):
    """All matrices have the codes of one process in this shape: parts of them end where a group of codes does.

    Sums over two ranks are rounded otherwise, so the code of an activation may be the next one."""
    folder = save(build("qwen3_moe", head_dim=64), tmp_path / "model")
    int4 = {"quantization": "int4"}
    alone = resolved(folder, tmp_path, model=int4)
    compare_while_experts_move(moving(folder, tmp_path, model=int4), alone, within=5e-3)


@pytest.mark.slow
def test_over_gloo_and_in_stages(saved: Callable[[str], Saved], tmp_path: Path):
    _, folder = saved("qwen3_moe")
    alone = resolved(folder, tmp_path)
    over_gloo = moving(folder, tmp_path, parallel={"disable_custom_all_reduce": True})
    compare_while_experts_move(over_gloo, alone)
    compare_while_experts_move(moving(folder, tmp_path, parallel={"pipeline_parallel_size": 2}), alone)


@pytest.mark.slow
def test_experts_that_move_one_at_a_time(
    saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A layer is computed with its old places until all of its experts have arrived."""
    monkeypatch.setattr(expert_balancer, "BYTES_PER_STEP", 1)
    _, folder = saved("qwen3_moe")
    compare_while_experts_move(moving(folder, tmp_path), resolved(folder, tmp_path))


@contextmanager
def biased(place: Path, settings: dict[str, Any], first_layer: int = 0, num_stages: int = 1) -> Iterator[DividedEngine]:
    """Nearly all tokens of the layers go to experts 0 and 1 of 8, which one of two ranks has at first."""
    model = build("gpt_oss", num_local_experts=8)
    with torch.no_grad():
        for layer in model.model.layers[first_layer:]:
            layer.mlp.router.bias += torch.tensor([6.0, 6, 2, 1, 0, 0, 0, 0])
    parallel = {"pipeline_parallel_size": num_stages}
    with divided(moving(save(model, place / "model"), place, settings, parallel=parallel)) as engine:
        yield engine


@pytest.mark.effect("parallel.eplb_config")
def test_a_skewed_load_becomes_even(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    caplog.set_level(logging.INFO)
    given_back: list[None] = []
    monkeypatch.setattr(expert_balancer, "give_back_free", lambda: given_back.append(give_back_free()))
    measured: list[float] = []
    settings = {"window_size": 10, "step_interval": 10, "num_redundant_experts": 2, "log_balancedness": True}
    with biased(tmp_path, settings) as engine:
        assert engine.own.expert_balance is None
        for _ in range(3):
            outputs(engine)
            measured.append(engine.own.expert_balance or 0.0)
        assert all({0, 1} <= set(held) for layout in layouts(engine) for held in layout)  # both have a copy
    logged = [record.getMessage() for record in caplog.records if record.getMessage().startswith("experts: ")]
    assert logged[0].startswith("experts: balancedness 0.6")  # expert 0 has a copy on both ranks by chance
    assert logged[1].endswith("places have got another expert")
    assert measured[-1] > 0.9
    assert given_back  # after moves
    assert logged[-1] == f"experts: balancedness {measured[-1]:.3f} over 10 steps"


def test_the_balance_of_a_pipeline_is_that_of_its_worst_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It was that of the first stage."""
    monkeypatch.setattr(expert_balancer, "balanced_layout", lambda layout, loads: layout)
    settings = {"window_size": 3, "step_interval": 3}
    with biased(tmp_path, settings, first_layer=1, num_stages=2) as engine:
        assert engine.own.expert_balance is None
        outputs(engine)
        first, worst = balancer_of(engine).balancedness, engine.own.expert_balance
    assert first is not None
    assert worst is not None
    assert worst < 0.6 < first


@pytest.mark.parametrize("redundant", [0, 2])
def test_all_tokens_of_a_window_are_counted(redundant: int, tmp_path: Path):
    settings = {"window_size": 1000, "step_interval": 1000, "num_redundant_experts": redundant}
    with biased(tmp_path, settings) as engine:
        for places in places_of(engine):
            places.forget_counts()
        outputs(engine)
        first, *_ = places_of(engine)
        counts = first.expert_counts()
        assert sum(counts) == sum(first.rank_counts())
        assert counts[0] + counts[1] > 0.9 * sum(counts)
        assert first.rank_counts()[0] > 0.9 * sum(counts) or redundant
