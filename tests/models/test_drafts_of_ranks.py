"""Networks that draft for a model of several processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.slow_cases import slow

from stoker.engine.api import SamplingParams
from stoker.engine.core import Scheduler
from stoker.engine.core.settings import DraftSettings
from stoker.engine.executor.scheduler import scheduler_settings
from stoker.engine.models.draft_network import DraftLayers
from stoker.engine.runner.model_drafts import ModelDrafts

from .checkpoints import build, save
from .conftest import Saved
from .draft_checkpoints import (
    add_mtp,
    eagle3_chain,
    load_mtp,
    mtp_chain,
    save_dflash,
    save_eagle,
    save_eagle3,
    save_peagle,
)
from .engine import Engine, resolved
from .ranks import DividedEngine, divided
from .steered import steer
from .test_drafts import assert_same, samplings
from .test_generation import FEW_BLOCKS, make_prompts
from .test_model_drafts import MTP_FAMILIES, NORMED, AlwaysDrafts, Drafted

TENSOR, STAGES = {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}
CASES = [("draft_model", TENSOR), ("draft_model", STAGES), ("mtp", TENSOR), ("mtp", STAGES), ("eagle3", TENSOR)]
CASES += [slow("mtp", TENSOR | STAGES), slow("draft_model", TENSOR | STAGES)]
CASES += [slow("eagle", TENSOR), slow("eagle", STAGES), slow("dflash", TENSOR), slow("peagle", TENSOR)]
SAVED = {"eagle": save_eagle, "eagle3": save_eagle3, "peagle": save_peagle, "dflash": save_dflash}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    model = build("llama", num_hidden_layers=4)
    return model, save(model, tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    model = build("deepseek_v3")
    return model, add_mtp(save(model, tmp_path_factory.mktemp("deepseek") / "model"))


@pytest.mark.parametrize(
    ("family", "parallel"), [("qwen3_5", TENSOR), slow("qwen3_5", STAGES), slow("glm4_moe", TENSOR)]
)
def test_preempted_sequences_and_recurrent_states(
    family: str, parallel: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process has rejected drafts taken back from its states, from the plan alone."""
    folder, prompts = add_mtp(save(build(family), tmp_path / "model")), make_prompts(12)
    plain = [each for index, each in enumerate(samplings()) if index % 6 != 3]  # those with penalties get no drafts
    prompts = prompts[: len(plain)]
    expected = Engine(resolved(folder, tmp_path)).outputs(prompts, plain)
    settings = resolved(folder, tmp_path, speculative={"method": "mtp"}, parallel=parallel, cache=FEW_BLOCKS)
    with divided(settings) as engine:
        with_drafts = DraftSettings(drafter=AlwaysDrafts(4), in_order=False)
        engine.scheduler = Scheduler(scheduler_settings(settings, drafting=with_drafts))
        steer(engine, {tuple(each): its.token_ids for each, its in zip(prompts, expected, strict=True)}, monkeypatch)
        for _ in range(2):
            assert_same(engine.outputs(prompts, plain), expected)
        stats = engine.scheduler.stats()
    assert stats.drafts is not None
    assert 30 < sum(stats.drafts.accepted) < stats.drafts.tokens
    assert stats.num_preemptions > 0
    assert stats.prefix_hits > 0


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
    own: dict[str, Any] = {"method": "eagle3" if method == "peagle" else method}
    if method != "mtp":
        own["model"] = str(SAVED[method](tmp_path / method) if method in SAVED else folder)
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


@pytest.mark.parametrize(("method", "is_tied"), [("mtp", False), slow("eagle3", False), slow("eagle3", True)])
def test_one_rank_has_the_network_and_its_memory_is_counted(
    method: str, is_tied: bool, deepseek: Saved, tmp_path: Path
) -> None:
    folder, own = deepseek[1], {"method": method}
    if method == "eagle3":
        folder = save(build("llama", num_hidden_layers=4, tie_word_embeddings=is_tied), tmp_path / "model")
        own["model"] = str(save_eagle3(tmp_path / "eagle3"))
    alone, settings = (
        resolved(folder, tmp_path, speculative=each, parallel=TENSOR, model={"enforce_eager": True})
        for each in ({}, own)
    )
    with divided(settings) as engine:
        network, ring = drafts_of(engine)._network, drafts_of(engine)._ring
        assert isinstance(network, DraftLayers)
        assert ring is not None
        ends = network._model
        assert ends is not engine.own.loaded.model
        reads_output = is_tied or not network.draft.has_own_output
        parts = [*network.loadables(), *(ends.loadables() if reads_output else ends.embed.loadables())]
        num_bytes = sum(part.num_bytes for part in parts) + ring.nbytes
    counted = settings.memory.weights_bytes - alone.memory.weights_bytes
    assert abs(counted - num_bytes) < 0.01 * num_bytes


@pytest.mark.parametrize(("method", "parallel"), [("mtp", TENSOR), ("mtp", STAGES), ("eagle3", TENSOR)])
def test_a_rank_drafts_what_torch_computes(
    method: str,
    parallel: dict[str, int],
    llama: Saved,
    deepseek: Saved,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hidden states that it begins with are whole, and so are its embedding and its output layer."""
    model, folder = deepseek if method == "mtp" else llama
    own = {"method": method} | ({} if method == "mtp" else {"model": str(save_eagle3(tmp_path / "eagle3"))})
    settings = resolved(folder, tmp_path, speculative=own, parallel=parallel, cache={"enable_prefix_caching": False})
    with divided(settings) as engine:
        with_drafts = DraftSettings(drafter=AlwaysDrafts(3), in_order=False)
        engine.scheduler = Scheduler(scheduler_settings(settings, drafting=with_drafts))
        recorded = Drafted(drafts_of(engine), monkeypatch)
        engine.outputs(make_prompts(5), SamplingParams(temperature=0, max_tokens=8))
    assert len(recorded.chains) > 10
    layer = load_mtp(model, folder, **MTP_FAMILIES["deepseek_v3"]) if method == "mtp" else None
    for known, chain in recorded.chains:
        if layer is None:
            assert chain == eagle3_chain(model, known, len(chain))
        else:
            assert chain == mtp_chain(model, layer, known, len(chain), feeds_normed="deepseek_v3" in NORMED)
