"""Models with recurrent states: each token changes its sequence's state once, whatever happens to the sequence."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.slow_cases import slow

from stoker.engine.api import EngineRequest, FinishReason, RequestInputs
from stoker.engine.kernels import (
    KernelSet,
    causal_convolution,
    gated_delta,
    select_kernels,
    selective_scan,
    state_space,
)
from stoker.engine.kernels.recurrent_step import RecurrentStep, rows_of
from stoker.engine.runner import loaded_model
from stoker.engine.runner.state_cache import StateCache
from stoker.engine.step.plan import NO_COPIES, Int32, StepPlan
from stoker.engine.step.result import StepResult

from .checkpoints import reference_greedy, references
from .conftest import Saved
from .engine import GREEDY, Engine, resolved
from .test_generation import FEW_BLOCKS, make_prompts

STATEFUL = ["qwen3_5", slow("lfm2"), slow("nemotron_h"), slow("falcon_h1")]
STATEFUL += [slow("falcon_mamba"), slow("jamba"), slow("qwen4_exp"), slow("zamba2"), slow("deepseek_v4")]


def requests_of(prompts: list[list[int]]) -> list[EngineRequest]:
    return [
        EngineRequest(request_id=str(index), inputs=RequestInputs(prompt, GREEDY))
        for index, prompt in enumerate(prompts)
    ]


def run_ahead(engine: Engine, prompts: list[list[int]], fails: Callable[[StepPlan], bool]) -> dict[str, list[int]]:
    """With two plans in flight, as with `scheduler.async_scheduling`. A step that fails is not executed, nor are the
    steps that were planned after it. Returns the tokens of the requests that were not in such a step."""
    for request in requests_of(prompts):
        engine.scheduler.add(request)
    in_flight: deque[StepPlan] = deque()
    results: dict[int, StepResult] = {}
    tokens: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    while engine.scheduler.has_work:
        while len(in_flight) < 2 and (plan := engine.scheduler.schedule()) is not None:
            in_flight.append(plan)
            if not fails(plan):
                results[plan.step] = engine.runner.execute(plan)
                continue
            while in_flight and in_flight[0].step in results:
                plan = in_flight.popleft()
                for output in engine.scheduler.finish_step(plan, results[plan.step]):
                    tokens[output.request_id] += output.token_ids
            for plan in [*in_flight]:
                for output in engine.scheduler.fail_step(plan, "failed"):
                    tokens.pop(output.request_id)
            in_flight.clear()
        if in_flight:
            plan = in_flight.popleft()
            for output in engine.scheduler.finish_step(plan, results[plan.step]):
                tokens[output.request_id] += output.token_ids
    return tokens


@pytest.mark.parametrize("family", STATEFUL)
@pytest.mark.parametrize("has_failures", [True, slow(False)])
def test_steps_ahead_and_failed_steps_leave_the_states_of_others(
    family: str, has_failures: bool, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    model, folder = saved(family)
    engine = Engine(resolved(folder, tmp_path, cache=FEW_BLOCKS))
    prompts = make_prompts(20)
    found = run_ahead(engine, prompts, lambda plan: has_failures and plan.step in (9, 31))
    assert (0 < len(found) < 20) if has_failures else len(found) == 20
    for index, token_ids in found.items():
        assert token_ids == reference_greedy(model, prompts[int(index)], 24, token_ids)
    assert engine.scheduler.stats().prefix_hits > 0
    assert engine.scheduler.stats().num_preemptions >= 1


def test_an_aborted_sequence_leaves_nothing_in_its_slot(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    model, folder = saved("qwen3_5")
    engine = Engine(resolved(folder, tmp_path, scheduler={"max_num_seqs": 1}))
    first, second = make_prompts(2)
    for request in requests_of([first, second]):
        engine.scheduler.add(request)
    for _ in range(5):
        plan = engine.scheduler.schedule()
        assert plan is not None
        engine.scheduler.finish_step(plan, engine.runner.execute(plan))
    output = engine.scheduler.abort("0")
    assert output is not None
    assert output.finish_reason is FinishReason.ABORT
    assert engine.run([])["1"].token_ids == reference_greedy(model, second, 24)


def test_the_states_have_the_planned_size(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    settings = resolved(saved("qwen3_5")[1], tmp_path)
    engine = Engine(settings)
    states = engine.runner.loaded.cache.states
    assert states is not None
    channels, sums = 2 * 2 * 24 + 4 * 20, 4 * 24 * 20
    assert settings.num_kept_states == 8 * 8
    assert settings.memory.state_bytes == states.num_bytes == (8 + 64) * 2 * 4 * (3 * channels + sums)
    assert "64 more are kept" in engine.runner.info().kernels["recurrent_states"]


SHARED = [7 + index % 50 for index in range(30)]


def answer(engine: Engine, prompt: list[int]) -> tuple[list[int], int]:
    """Tokens, and how many of the prompt's were found in the cache."""
    request = EngineRequest(request_id="0", inputs=RequestInputs(prompt, GREEDY))
    output = engine.run([request])["0"]
    return output.token_ids, output.num_cached_tokens


@pytest.mark.parametrize("family", STATEFUL)
def test_a_conversation_continues_from_the_end_of_its_last_turn(
    family: str, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    """The first turn leaves states at 8 (its prompt) and 32 (its answer, the newest)."""
    model, folder = saved(family)
    engine = Engine(resolved(folder, tmp_path))
    first, num_cached = answer(engine, SHARED[:9])
    assert (len(first), num_cached) == (24, 0)
    said = [*SHARED[:9], *first, 5, 6]
    second, num_cached = answer(engine, said)
    assert num_cached == 32
    assert second == reference_greedy(model, said, 24)
    assert answer(engine, SHARED[:9]) == (first, 8)


def test_a_shared_beginning_is_computed_twice_at_most(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    """The second prompt is cut where it leaves the first one, and keeps the state there. Of six that arrive together,
    the second computes what the first one does, and the others wait for it."""
    model, folder = saved("qwen3_5")
    engine = Engine(resolved(folder, tmp_path, scheduler={"max_num_batched_tokens": 128}))
    prompts = [[*SHARED[:25], index, *range(40, 50)] for index in range(20, 26)]
    expected = [reference_greedy(model, prompt, 24) for prompt in prompts]
    assert [answer(engine, prompt) for prompt in prompts[:3]] == list(zip(expected[:3], [0, 0, 24], strict=True))
    engine = Engine(resolved(folder, tmp_path, scheduler={"max_num_batched_tokens": 128}))
    done = engine.run(requests_of(prompts))
    assert [done[str(index)].token_ids for index in range(6)] == expected
    assert [done[str(index)].num_cached_tokens for index in range(6)] == [0, 0, 24, 24, 24, 24]


def test_the_sequences_of_one_prompt_compute_it_once(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    engine = Engine(resolved(saved("qwen3_5")[1], tmp_path, scheduler={"max_num_batched_tokens": 128}))
    done = engine.run(requests_of([SHARED] * 4))
    assert [done[str(index)].num_cached_tokens for index in range(4)] == [0, 24, 24, 24]
    assert len({tuple(output.token_ids) for output in done.values()}) == 1


@pytest.mark.effect("cache.prefix_cache_retention_interval")
@pytest.mark.parametrize(("interval", "expected"), [(8, 24), (17, 24), (25, 0), (0, 0)])
def test_states_are_kept_at_intervals(
    interval: int, expected: int, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    engine = Engine(resolved(saved("qwen3_5")[1], tmp_path, cache={"prefix_cache_retention_interval": interval}))
    tokens, _ = answer(engine, SHARED[:26])
    assert answer(engine, SHARED[:26]) == (tokens, expected)


COPIES: dict[str, Callable[[StateCache, Int32, bool], Int32]] = {
    "not restored": lambda states, copies, is_after: copies if is_after else NO_COPIES,
    "not kept": lambda states, copies, is_after: NO_COPIES if is_after else copies,
    "of another slot": lambda states, copies, is_after: copies + np.array([is_after, 0], np.int32),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutation", COPIES)
def test_a_wrong_copy_changes_the_tokens(
    mutation: str, saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the other tests would notice one."""
    model, folder = saved("qwen3_5")
    prompts = make_prompts(12)
    copy, num_slots = StateCache.copy, 8

    def mutated(states: StateCache, copies: Int32) -> None:
        is_after = bool((copies[:, 0] < num_slots).any())
        copy(states, COPIES[mutation](states, copies, is_after))

    monkeypatch.setattr(StateCache, "copy", mutated)
    engine = Engine(resolved(folder, tmp_path))
    found = [engine.generate(prompts) for _ in range(2)]
    assert found[1] != [reference_greedy(model, prompt, 24) for prompt in prompts]


def test_a_step_that_cannot_be_captured_changes_the_states_once(
    saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt has computed it: computing it again would give wrong tokens from the second one on."""
    model, folder = saved("qwen3_5")
    monkeypatch.setattr(
        loaded_model,
        "select_kernels",
        lambda *a, **k: replace(select_kernels(*a, **k), gate_outputs=KernelSet().gate_outputs),
    )
    engine = Engine(resolved(folder, tmp_path))
    prompts = make_prompts(12)
    found = engine.generate(prompts)
    assert found == references(model, prompts, found)
    stages = engine.runner.info().kernels
    assert stages["linear"].startswith("torch") or "cannot be replayed" in stages["decode_step"]


Row = tuple[int, int, int, bool]
MUTATIONS: dict[str, Callable[[Row], Row]] = {
    "not reset": lambda row: (*row[:3], False),
    "always reset": lambda row: (*row[:3], True),
    "another slot": lambda row: (row[0], row[1], row[2] // 2, row[3]),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize(
    ("op", "family"),
    [
        (causal_convolution, "qwen3_5"),
        (gated_delta, "qwen3_5"),
        (state_space, "nemotron_h"),
        (selective_scan, "falcon_mamba"),
    ],
)
def test_a_wrong_state_changes_the_tokens(
    mutation: str, op: Any, family: str, saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the other tests would notice one."""
    model, folder = saved(family)
    prompts = make_prompts(12)

    def mutated(step: RecurrentStep) -> Iterator[Row]:
        return map(MUTATIONS[mutation], rows_of(step))

    monkeypatch.setattr(op, "rows_of", mutated)
    engine = Engine(resolved(folder, tmp_path, model={"enforce_eager": True}))
    assert engine.generate(prompts) != [reference_greedy(model, prompt, 24) for prompt in prompts]


@pytest.mark.effect("cache.mamba_cache_dtype", "cache.mamba_ssm_cache_dtype")
@pytest.mark.parametrize("option", ["mamba_cache_dtype", "mamba_ssm_cache_dtype"])
@pytest.mark.parametrize("family", ["qwen3_5", slow("bamba"), slow("jamba"), slow("recurrent_gemma")])
def test_states_in_bfloat16_take_half_the_memory_and_are_rounded(
    option: str, family: str, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    """The sums do; inputs of convolutions keep the model's format. The first token depends on no rounded state."""
    folder = saved(family)[1]
    wide, narrow = resolved(folder, tmp_path), resolved(folder, tmp_path, cache={option: "bfloat16"})
    sums = sum(math.prod(state.sums) for state in wide.model_spec.states if state is not None)
    assert wide.memory.num_states == narrow.memory.num_states
    assert wide.memory.state_bytes - narrow.memory.state_bytes == wide.memory.num_states * 2 * sums
    engines = Engine(wide), Engine(narrow)
    states = engines[1].runner.loaded.cache.states
    assert states is not None
    assert narrow.memory.state_bytes == states.num_bytes
    prompt = SHARED[:26]
    inputs = RequestInputs(prompt, replace(GREEDY, max_tokens=8, logprobs=1))
    request = EngineRequest(request_id="0", inputs=inputs)
    first, second = (engine.run([request])["0"].logprobs for engine in engines)
    assert first is not None
    assert second is not None
    differences = [abs(a.logprobs[0] - b.logprobs[0]) for a, b in zip(first, second, strict=True)]
    assert 0 < max(differences) < 0.05
