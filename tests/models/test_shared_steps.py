"""Ranks that share the tokens of prompts compute what one process does. Here they are threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.slow_cases import slow

from stoker.engine.api import SamplingParams
from stoker.engine.collectives.gloo import GlooRanks
from stoker.engine.collectives.turns import call_in_turns
from stoker.engine.runner import shared_step
from stoker.engine.runner.shared_step import SharedSteps
from stoker.model.context_parallel import prompt_sharing_problem
from stoker.model.tensor_parallel import tensor_parallel_problem

from .checkpoints import step_kinds
from .conftest import Saved
from .engine import Engine, assert_prompts_scored_alike, resolved
from .ranks import divided
from .test_context_parallel import assert_same, outputs
from .test_generation import FEW_BLOCKS, make_prompts


@pytest.fixture(autouse=True)
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each shared step, of all ranks. Steps of few tokens are shared too."""
    found: list[int] = []
    compute = SharedSteps.compute

    def counted(self, plan, *rest):
        found.append(plan.num_batched_tokens)
        return compute(self, plan, *rest)

    monkeypatch.setattr(SharedSteps, "compute", counted)
    monkeypatch.setattr(shared_step, "MIN_TOKENS_EACH", 2)
    return found


@pytest.mark.effect("parallel.prefill_context_parallel_size")
@pytest.mark.parametrize("family", step_kinds())
@pytest.mark.quick_cases(1, family=["deepseek_v3"])
def test_shared_prompts_give_what_one_process_does(
    family: str, saved: Callable[[str], Saved], tmp_path: Path, counts: list[int]
):
    """Prompts in chunks, prefixes from the cache, also of the same step, and preempted sequences."""
    _, folder = saved(family)
    alone = resolved(folder, tmp_path, cache=FEW_BLOCKS)
    if reason := prompt_sharing_problem(alone.model_spec):
        pytest.skip(reason)
    whole = Engine(alone)
    expected = outputs(whole)
    settings = resolved(folder, tmp_path, cache=FEW_BLOCKS, parallel={"prefill_context_parallel_size": 2})
    with divided(settings) as engine:
        table = engine.own.info().kernels["shared_steps"]
        assert_same(outputs(engine), expected)
        assert engine.scheduler.stats().num_preemptions == whole.scheduler.stats().num_preemptions
    assert "by 2 processes" in table
    assert len(counts) > 10


@pytest.mark.parametrize(
    ("family", "sizes", "in_turns"),
    [
        ("deepseek_v3", (2, 2), True),
        slow("deepseek_v3", (3, 1), False),
        slow("qwen3_moe", (2, 1), True),
        slow("qwen3_moe", (2, 2), False),
        slow("gemma3", (3, 1), True),
        slow("gemma3", (2, 2), False),
        slow("gemma4 shared", (2, 1), False),
        slow("gemma4 shared", (2, 2), True),
    ],
)
def test_other_numbers_of_ranks(
    family: str,
    sizes: tuple[int, int],
    in_turns: bool,
    saved: Callable[[str], Saved],
    tmp_path: Path,
    counts: list[int],
    monkeypatch: pytest.MonkeyPatch,
):
    """Also where the two pieces of each rank are computed in turns."""
    turns: list[int] = []

    def counted(calls):
        turns.append(len(calls))
        return call_in_turns(calls)

    monkeypatch.setattr(shared_step, "call_in_turns", counted)
    _, folder = saved(family)
    alone = resolved(folder, tmp_path)
    assert not tensor_parallel_problem(alone.model_spec, 2)
    expected = outputs(Engine(alone))
    names = "prefill_context_parallel_size", "tensor_parallel_size"
    parallel: dict[str, Any] = dict(zip(names, sizes, strict=True))
    if in_turns:
        parallel |= {"enable_dbo": True, "dbo_prefill_token_threshold": 4, "dbo_decode_token_threshold": 4}
    with divided(resolved(folder, tmp_path, parallel=parallel)) as engine:
        assert_same(outputs(engine), expected)
    assert counts
    assert max(turns) == 1 + in_turns


@pytest.mark.slow
def test_a_cache_in_int8(saved: Callable[[str], Saved], tmp_path: Path):
    """Codes and scales of a token are in different places."""
    _, folder = saved("llama")
    cache = {"kv_cache_dtype": "int8"}
    expected = outputs(Engine(resolved(folder, tmp_path, cache=cache)))
    with divided(resolved(folder, tmp_path, cache=cache, parallel={"prefill_context_parallel_size": 2})) as engine:
        # with VNNI queries of single tokens have codes too, and those of chunks have none
        assert_same(outputs(engine), expected, tolerance=1e-2)


def test_log_probabilities_of_prompts(saved: Callable[[str], Saved], tmp_path: Path, counts: list[int]):
    _, folder = saved("llama")
    sampling = SamplingParams(max_tokens=3, temperature=0, prompt_logprobs=2, ignore_eos=True)
    expected = Engine(resolved(folder, tmp_path)).outputs(make_prompts(6), sampling)
    with divided(resolved(folder, tmp_path, parallel={"prefill_context_parallel_size": 2})) as engine:
        found = engine.outputs(make_prompts(6), sampling)
    assert counts
    assert_prompts_scored_alike(found, expected)


def test_no_rank_is_far_ahead_while_each_computes_single_tokens(
    saved: Callable[[str], Saved], tmp_path: Path, counts: list[int], monkeypatch: pytest.MonkeyPatch
):
    """Else the next prompt would wait for all steps that a slower rank has to compute before it."""
    exchanges: list[int] = []
    of_all = GlooRanks.of_all

    def counted(self, x):
        exchanges.append(self.rank)
        return of_all(self, x)

    monkeypatch.setattr(GlooRanks, "of_all", counted)
    _, folder = saved("llama")
    sampling = SamplingParams(max_tokens=48, temperature=0, ignore_eos=True)
    with divided(resolved(folder, tmp_path, parallel={"prefill_context_parallel_size": 2})) as engine:
        for each in (counts, exchanges):  # of the warm-up
            each.clear()
        engine.outputs([[5]], sampling)
    assert not counts
    assert exchanges.count(0) == exchanges.count(1) == 48 // shared_step.MAX_STEPS_AHEAD
