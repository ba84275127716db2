"""Experts that move between ranks while these serve: the same tokens, and a more even load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.slow_cases import slow_but

from stoker.config import Resolved
from stoker.engine.parallel.expert_layout import rank_loads

from .checkpoints import build, save
from .conftest import Saved
from .engine import Engine, resolved
from .ranks import DividedEngine, divided
from .test_tensor_parallel import outputs

BALANCE = {"window_size": 3, "step_interval": 5, "num_redundant_experts": 2}


def moving(folder: Path, place: Path, balance: dict[str, object] = BALANCE, **sections: dict[str, object]) -> Resolved:
    parallel = {"tensor_parallel_size": 2, "enable_expert_parallel": True, "enable_eplb": True, "eplb_config": balance}
    return resolved(folder, place, **{**sections, "parallel": {**parallel, **sections.get("parallel", {})}})


def layouts(engine: DividedEngine) -> list[object]:
    balancer = engine.runner._runner._balancer
    assert balancer is not None
    return [places.layout for places in balancer._places]


@pytest.mark.effect("parallel.enable_eplb", "parallel.eplb_config")
@pytest.mark.parametrize("family", slow_but(["qwen3_moe", "gpt_oss", "deepseek_v3", "gemma4 experts"], "qwen3_moe"))
def test_tokens_are_those_of_one_process_before_during_and_after_moves(
    family: str, saved: Callable[[str], Saved], tmp_path: Path
):
    _, folder = saved(family)
    expected = outputs(Engine(resolved(folder, tmp_path)))
    with divided(moving(folder, tmp_path)) as engine:
        first = layouts(engine)
        found = [outputs(engine) for _ in range(3)]
        assert layouts(engine) != first
        assert engine.runner._runner.expert_balance is not None
    for tokens_and_logprobs in found:
        for (tokens, logprobs), (its, theirs) in zip(tokens_and_logprobs, expected, strict=True):
            assert tokens == its
            assert logprobs == pytest.approx(theirs, abs=1e-4)
