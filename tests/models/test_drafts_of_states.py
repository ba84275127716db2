"""Drafts change no token of models with recurrent states, which have the rejected ones taken back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.drafters import AnyDrafter
from tests.slow_cases import slow

from stoker.engine.api import EngineOutput, EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core import Scheduler
from stoker.engine.core.settings import DraftSettings
from stoker.engine.executor.build import build_core
from stoker.engine.executor.scheduler import scheduler_settings
from stoker.engine.runner.rejected_drafts import RejectedDrafts
from stoker.engine.runner.runner import Runner
from stoker.engine.runner.state_cache import StateCache
from stoker.engine.step.plan import StepPlan

from .checkpoints import build, save
from .conftest import Saved
from .draft_checkpoints import add_mtp
from .engine import Engine, resolved
from .ranks import DividedEngine, divided
from .test_drafts import assert_same, samplings, with_drafts
from .test_generation import FEW_BLOCKS, ONE_GROUP, make_prompts
from .test_kernel_switch import SwitchingEngine
from .test_model_drafts import assert_no_token_changes

DRAFTS: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 4}
GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
# A family of each kind of state.
FAMILIES = ["qwen3_5", "mamba2", slow("qwen3_next"), slow("kimi_linear"), slow("falcon_mamba"), slow("jamba")]
FAMILIES += [slow("nemotron_h"), slow("lfm2"), slow("lfm3"), slow("recurrent_gemma"), slow("minimax"), slow("zamba2")]
FAMILIES += [slow("zamba"), slow("bailing_hybrid"), slow("falcon_h1"), slow("qwen4_exp"), slow("deepseek_v4")]


def drafting(folder: Path, place: Path, **sections: dict[str, Any]) -> Any:
    return resolved(folder, place, speculative=DRAFTS, **sections)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", [{}, FEW_BLOCKS], ids=["", "preempted"])
@pytest.mark.parametrize("is_eager", [False, slow(True)], ids=["", "torch"])
def test_all_kinds_of_requests_get_the_same_tokens(
    family: str, cache: dict[str, int], is_eager: bool, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    """Prompts are computed in chunks, beside answers, and shared prefixes continue from kept states. Some sequences are
    preempted."""
    prompts, folder = make_prompts(12), saved(family)[1]
    sections: dict[str, Any] = {"cache": cache, "scheduler": ONE_GROUP, "model": {"enforce_eager": is_eager}}
    expected = Engine(resolved(folder, tmp_path, **sections)).outputs(prompts, samplings())
    settings = drafting(folder, tmp_path, **sections)
    engine = Engine(settings)
    with_drafts(engine, settings, expected, prompts)
    assert_same(engine.outputs(prompts, samplings()), expected)
    stats = engine.scheduler.stats()
    assert stats.drafts is not None
    assert 0 < sum(stats.drafts.accepted) < stats.drafts.tokens
    assert (stats.num_preemptions > 0) == bool(cache)
    assert stats.num_free_blocks == stats.num_blocks
    assert stats.prefix_hits > 0
    assert_same(engine.outputs(prompts, samplings()), expected)  # from what was kept


SHARED = [7 + index % 50 for index in range(30)]


def turn(engine: Engine, prompt: list[int]) -> EngineOutput:
    return engine.run([EngineRequest(request_id="0", inputs=RequestInputs(prompt, GREEDY))])["0"]


@pytest.mark.parametrize("family", ["qwen3_5", slow("lfm2"), slow("nemotron_h"), slow("deepseek_v4")])
@pytest.mark.parametrize("wrong_every", [2, 3, 100])
def test_a_second_turn_continues_from_the_states_of_the_first(
    family: str, wrong_every: int, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    """States are kept at the same places as without drafts, whether drafts end there or are rejected before."""
    folder = saved(family)[1]
    plain = Engine(resolved(folder, tmp_path))
    first = turn(plain, SHARED[:9])
    said = [*SHARED[:9], *first.token_ids, 5, 6]
    second = turn(plain, said)
    settings = drafting(folder, tmp_path)
    engine = Engine(settings)
    drafter = with_drafts(engine, settings, [first, second], [SHARED[:9], said])
    drafter.wrong_every = wrong_every
    assert turn(engine, SHARED[:9]).token_ids == first.token_ids
    found = turn(engine, said)
    assert found.token_ids == second.token_ids
    assert found.num_cached_tokens == second.num_cached_tokens == 32
    counts = engine.scheduler.stats().drafts
    assert counts is not None
    assert sum(counts.accepted) > 0


def test_steps_with_drafts_are_captured(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    folder, prompt = saved("qwen3_5")[1], SHARED[:9]
    expected = Engine(resolved(folder, tmp_path)).outputs([prompt], GREEDY)
    settings = drafting(folder, tmp_path)
    engine = Engine(settings)
    with_drafts(engine, settings, expected, [prompt])
    for _ in range(2):  # the second time graphs are replayed
        before = engine.runner.launches()
        assert_same(engine.outputs([prompt], GREEDY), expected)
        assert engine.runner.launches().captured - before.captured > 5


Wrong = Callable[..., Any]


def skipped(_: Wrong) -> Wrong:
    return lambda *_: None


def restored_only(take_back: Wrong) -> Wrong:
    """The accepted tokens are forgotten too."""

    def wrong(self: Any, plan: StepPlan) -> None:
        advance, self._stack.advance = self._stack.advance, lambda *_: None
        take_back(self, plan)
        self._stack.advance = advance

    return wrong


def not_restored(take_back: Wrong) -> Wrong:
    """The accepted tokens change the state a second time."""

    def wrong(self: Any, plan: StepPlan) -> None:
        places, self._places = self._places, lambda slots: places(slots)[:0]
        take_back(self, plan)
        self._places = places

    return wrong


@pytest.mark.parametrize("mutation", [skipped, restored_only, not_restored])
@pytest.mark.parametrize("family", ["qwen3_5", slow("lfm2"), slow("falcon_mamba"), slow("deepseek_v4")])
def test_a_rejected_token_that_stays_in_a_state_changes_the_tokens(
    family: str,
    mutation: Callable[[Wrong], Wrong],
    saved: Callable[[str], Saved],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts, folder = make_prompts(4), saved(family)[1]
    expected = Engine(resolved(folder, tmp_path)).outputs(prompts, GREEDY)
    monkeypatch.setattr(RejectedDrafts, "_take_back", mutation(RejectedDrafts._take_back))
    settings = drafting(folder, tmp_path)
    engine = Engine(settings)
    with_drafts(engine, settings, expected, prompts)
    found = engine.outputs(prompts, GREEDY)
    assert [each.token_ids for each in found] != [each.token_ids for each in expected]


def test_nothing_is_copied_while_no_row_has_drafts(
    saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    copy = StateCache.copy

    def counted(self: StateCache, places: Any) -> None:
        copied.append(len(places))
        copy(self, places)

    monkeypatch.setattr(StateCache, "copy", counted)
    folder, cache = saved("qwen3_5")[1], {"enable_prefix_caching": False}
    engine = Engine(drafting(folder, tmp_path, cache=cache))
    drafted = engine.runner.parts.copies[-1]
    assert isinstance(drafted, RejectedDrafts)
    engine.outputs(make_prompts(4), GREEDY)
    assert sum(copied) == 0
    plain = Engine(resolved(folder, tmp_path, cache=cache))
    assert not any(isinstance(each, RejectedDrafts) for each in plain.runner.parts.copies)


BOTH = {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}


@pytest.mark.parametrize("family", ["qwen3_5", slow("jamba"), slow("falcon_mamba"), slow("lfm2"), slow("deepseek_v4")])
@pytest.mark.parametrize(
    "parallel",
    [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}, slow(BOTH)],
    ids=["tensor", "stages", "both"],
)
def test_ranks_and_stages(family: str, parallel: dict[str, int], saved: Callable[[str], Saved], tmp_path: Path) -> None:
    prompts, folder = make_prompts(6), saved(family)[1]
    expected = Engine(resolved(folder, tmp_path)).outputs(prompts, GREEDY)
    settings = drafting(folder, tmp_path, parallel=parallel)
    with divided(settings) as engine:
        with_drafts(engine, settings, expected, prompts)
        assert_same(engine.outputs(prompts, GREEDY), expected)
        stats = engine.scheduler.stats()
    assert stats.drafts is not None
    assert 0 < sum(stats.drafts.accepted) < stats.drafts.tokens


def test_each_sequence_has_a_second_state(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    folder = saved("qwen3_5")[1]
    plain, settings = resolved(folder, tmp_path), drafting(folder, tmp_path)
    one = plain.memory.state_bytes // plain.memory.num_states
    assert settings.memory.state_bytes - plain.memory.state_bytes == 8 * one
    assert settings.num_kept_states == plain.num_kept_states == 64
    states = Engine(settings).runner.loaded.cache.states
    assert states is not None
    assert states.num_bytes == settings.memory.state_bytes


def kept_bytes(runner: Runner) -> int:
    """Bytes of what is kept of rows with drafts. What several rows have in common counts once."""
    rows = runner.made.drafted_rows.values()
    storages = [each.values.untyped_storage() for row in rows for each in row.inputs]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


ON_TWO_RANKS = [slow(family, {"tensor_parallel_size": 2}) for family in ("qwen3_5", "mamba2", "lfm2", "deepseek_v4")]


@pytest.mark.parametrize("max_tokens", [30, 64], ids=["prompts have a part of the step", ""])
@pytest.mark.parametrize(
    ("family", "parallel"),
    [*((each, {}) if isinstance(each, str) else slow(*each.values, {}) for each in FAMILIES), *ON_TWO_RANKS],
)
def test_what_is_kept_of_drafts_is_counted(
    family: str, max_tokens: int, parallel: dict[str, int], saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    folder, scheduler = saved(family)[1], {"max_num_batched_tokens": max_tokens}
    # States are kept at the end of each prompt only: elsewhere no row with drafts passes the place of one.
    cache = {"prefix_cache_retention_interval": 64}
    settings = drafting(folder, tmp_path, scheduler=scheduler, cache=cache, parallel=parallel)
    with divided(settings) if parallel else contextlib.nullcontext(Engine(settings)) as engine:
        with_settings = DraftSettings(drafter=AnyDrafter(4))
        engine.scheduler = Scheduler(scheduler_settings(settings, drafting=with_settings))
        own, most = engine.own if isinstance(engine, DividedEngine) else engine.runner, 0
        finish_step = engine.scheduler.finish_step

        def counted(*arguments: Any) -> Any:
            nonlocal most
            most = max(most, kept_bytes(own))
            return finish_step(*arguments)

        engine.scheduler.finish_step = counted  # type: ignore[method-assign]
        for num_rows in range(5, 9):  # with one of these numbers a step has the most tokens
            engine.outputs([[5 + index, 6] for index in range(num_rows)], GREEDY)
    plain = resolved(folder, tmp_path, scheduler=scheduler, cache=cache, parallel=parallel)
    assert most == settings.memory.drafted_bytes > 0 == plain.memory.drafted_bytes
    assert settings.memory.fixed_bytes - plain.memory.fixed_bytes - most == 8 * (
        settings.memory.state_bytes // settings.memory.num_states
    )


def test_what_was_drafted_with_torch_is_taken_back_by_other_kernels(
    saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, prompts = saved("falcon_mamba")[1], make_prompts(3)
    expected = Engine(resolved(folder, tmp_path)).outputs(prompts, GREEDY)
    settings = drafting(folder, tmp_path)
    engine = SwitchingEngine(settings, monkeypatch)
    with_drafts(engine, settings, expected, prompts)
    asked = [
        EngineRequest(request_id=str(index), inputs=RequestInputs(prompt, GREEDY))
        for index, prompt in enumerate(prompts)
    ]
    rows: list[int] = []
    switch = engine.switch
    monkeypatch.setattr(engine, "switch", lambda: (rows.append(len(engine.runner.made.drafted_rows)), switch()))
    found = engine.run_and_switch(asked, steps_before=9)
    assert rows == [3]
    assert [found[str(index)].token_ids for index in range(3)] == [output.token_ids for output in expected]


def test_a_server_measures_steps_of_a_model_with_states(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    core = build_core(drafting(saved("qwen3_5")[1], tmp_path))
    assert core.info.kernels["drafts"].startswith("at most 4 tokens, from the text of a request; a step of 5 takes ")
    core.close()


@pytest.mark.parametrize("cache", [{}, FEW_BLOCKS], ids=["", "preempted"])
@pytest.mark.parametrize("family", ["qwen3_5", slow("qwen3_next")])
def test_the_layer_for_multi_token_prediction_changes_nothing(
    family: str, cache: dict[str, int], tmp_path: Path
) -> None:
    folder = add_mtp(save(build(family), tmp_path / "model"))
    tokens, _ = assert_no_token_changes(folder, tmp_path, {"method": "mtp"}, cache=cache)
    assert tokens > 50


@pytest.mark.parametrize("family", ["qwen3_5", slow("lfm2"), slow("jamba"), slow("deepseek_v4")])
def test_a_model_that_drafts_changes_nothing(family: str, saved: Callable[[str], Saved], tmp_path: Path) -> None:
    own = {"method": "draft_model", "model": str(saved("llama")[1])}
    tokens, accepted = assert_no_token_changes(saved(family)[1], tmp_path, own)
    assert 0 < accepted < tokens
