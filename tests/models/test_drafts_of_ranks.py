"""Networks that draft for a model of several processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.slow_cases import slow

from stoker.engine.core import Scheduler
from stoker.engine.core.settings import DraftSettings
from stoker.engine.executor.scheduler import scheduler_settings
from stoker.engine.runner.model_drafts import ModelDrafts

from .checkpoints import build, save
from .conftest import Saved
from .draft_checkpoints import add_mtp, eagle3_chain, mtp_chain, save_eagle3
from .engine import Engine, resolved
from .ranks import DividedEngine, divided
from .steered import steer
from .test_drafts import assert_same, samplings
from .test_generation import make_prompts
from .test_model_drafts import AlwaysDrafts, Drafted

TENSOR, STAGES = {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}
CASES = [("draft_model", TENSOR), ("draft_model", STAGES), ("mtp", TENSOR), ("mtp", STAGES), ("eagle3", TENSOR)]
CASES += [slow("mtp", TENSOR | STAGES), slow("draft_model", TENSOR | STAGES)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    model = build("llama", num_hidden_layers=4)
    return model, save(model, tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    model = build("deepseek_v3")
    return model, add_mtp(save(model, tmp_path_factory.mktemp("deepseek") / "model"))


def drafts_of(engine: DividedEngine) -> ModelDrafts:
    found = engine.own.drafts
    assert found is not None
    return found


@pytest.mark.parametrize(("method", "parallel"), CASES)
def test_networks_and_ranks(
    method: str,
    parallel: dict[str, int],
    llama: Saved,
    deepseek: Saved,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = (deepseek if method == "mtp" else llama)[1]
    own: dict[str, Any] = {"method": method}
    if method != "mtp":
        own["model"] = str(folder if method == "draft_model" else save_eagle3(tmp_path / "eagle3"))
    prompts = make_prompts(12)
    expected = Engine(resolved(folder, tmp_path)).outputs(prompts, samplings())
    settings = resolved(folder, tmp_path, speculative=own, parallel=parallel)
    with divided(settings) as engine:
        with_drafts = DraftSettings(drafter=AlwaysDrafts(4), in_order=False)
        engine.scheduler = Scheduler(scheduler_settings(settings, drafting=with_drafts))
        answers = {tuple(prompt): each.token_ids for prompt, each in zip(prompts, expected, strict=True)}
        steer(engine, answers, monkeypatch)
        for _ in range(2):
            assert_same(engine.outputs(prompts, samplings()), expected)
        stats = engine.scheduler.stats()
        assert stats.drafts is not None
        assert 30 < sum(stats.drafts.accepted) < stats.drafts.tokens
        assert stats.prefix_hits > 0
        assert not drafts_of(engine).error
