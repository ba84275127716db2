"""Ranks that compute a step in parts compute what one process does. Here they are threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.engine.api import SamplingParams
from stoker.engine.collectives.turns import call_in_turns
from stoker.engine.runner import divided_step
from stoker.model.tensor_parallel import tensor_parallel_problem

from .checkpoints import step_kinds
from .conftest import Saved
from .engine import Engine, assert_prompts_scored_alike, resolved
from .ranks import divided
from .test_context_parallel import assert_same, outputs
from .test_generation import FEW_BLOCKS, make_prompts

OVER_NETWORK: dict[str, Any] = {"tensor_parallel_size": 2, "disable_custom_all_reduce": True}
LOW = {"dbo_prefill_token_threshold": 3, "dbo_decode_token_threshold": 2}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of parts of each divided step, of all ranks."""
    found: list[int] = []

    def counted(calls):
        found.append(len(calls))
        return call_in_turns(calls)

    monkeypatch.setattr(divided_step, "call_in_turns", counted)
    return found


@pytest.mark.effect("parallel.enable_dbo")
@pytest.mark.parametrize("family", step_kinds())
@pytest.mark.quick_cases(1, family=["deepseek_v3"])
def test_parts_compute_what_a_whole_step_does(
    family: str, saved: Callable[[str], Saved], tmp_path: Path, counts: list[int]
):
    """Prompts in chunks, prefixes from the cache, also of the same step, and preempted sequences."""
    _, folder = saved(family)
    alone = resolved(folder, tmp_path, cache=FEW_BLOCKS)
    if reason := tensor_parallel_problem(alone.model_spec, 2):
        pytest.skip(reason)
    whole = Engine(alone)
    expected = outputs(whole)
    settings = resolved(folder, tmp_path, cache=FEW_BLOCKS, parallel={**OVER_NETWORK, **LOW, "enable_dbo": True})
    with divided(settings) as engine:
        table = engine.own.info().kernels["divided_steps"]
        assert_same(outputs(engine), expected)
        assert engine.scheduler.stats().num_preemptions == whole.scheduler.stats().num_preemptions
    assert table.startswith("2 parts in turns")
    assert set(counts) == {2}
    assert len(counts) > 20


@pytest.mark.effect("parallel.ubatch_size")
@pytest.mark.parametrize("sharing", [{}, {"tensor_parallel_size": 4, "decode_context_parallel_size": 2}], ids=str)
@pytest.mark.slow
def test_more_parts_than_two(sharing: dict[str, int], saved: Callable[[str], Saved], tmp_path: Path, counts: list[int]):
    _, folder = saved("deepseek_v3")
    expected = outputs(Engine(resolved(folder, tmp_path)))
    settings = resolved(folder, tmp_path, parallel={**OVER_NETWORK, **LOW, "ubatch_size": 3, **sharing})
    with divided(settings) as engine:
        assert_same(outputs(engine), expected)
    assert set(counts) == {3}


@pytest.mark.effect("parallel.dbo_prefill_token_threshold")
@pytest.mark.effect("parallel.dbo_decode_token_threshold")
@pytest.mark.parametrize(("prompt", "decode", "divides"), [(9, 5, []), (8, 5, ["prompt"]), (9, 4, ["decode"])])
def test_thresholds(
    prompt: int, decode: int, divides: list[str], saved: Callable[[str], Saved], tmp_path: Path, counts: list[int]
):
    """A step of a prompt of 8 tokens, and one of 4 sequences."""
    _, folder = saved("qwen3")
    limits = {"dbo_prefill_token_threshold": prompt, "dbo_decode_token_threshold": decode}
    settings = resolved(folder, tmp_path, parallel={**OVER_NETWORK, "enable_dbo": True, **limits})
    with divided(settings) as engine:
        counts.clear()
        few = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        engine.outputs([[5, 6, 7, 8, 9, 10, 11, 12]], few)
        found = ["prompt"] * bool(counts)
        counts.clear()
        two = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        engine.outputs([[row + 3] for row in range(4)], two)
        found += ["decode"] * bool(counts)
    assert found == divides


def test_log_probabilities_of_prompts(saved: Callable[[str], Saved], tmp_path: Path, counts: list[int]):
    _, folder = saved("llama")
    sampling = SamplingParams(max_tokens=3, temperature=0, prompt_logprobs=2, ignore_eos=True)
    expected = Engine(resolved(folder, tmp_path)).outputs(make_prompts(6), sampling)
    settings = resolved(folder, tmp_path, parallel={**OVER_NETWORK, **LOW, "enable_dbo": True})
    with divided(settings) as engine:
        found = engine.outputs(make_prompts(6), sampling)
    assert counts
    assert_prompts_scored_alike(found, expected)
