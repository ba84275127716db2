"""Drafts change no token of models with recurrent states, which have the rejected ones taken back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.slow_cases import slow

from stoker.engine.api import EngineOutput, EngineRequest, RequestInputs, SamplingParams
from stoker.engine.runner.rejected_drafts import RejectedDrafts
from stoker.engine.runner.state_cache import StateCache
from stoker.engine.step.plan import StepPlan

from .conftest import Saved
from .engine import Engine, resolved
from .ranks import divided
from .test_drafts import assert_same, samplings, with_drafts
from .test_generation import FEW_BLOCKS, ONE_GROUP, make_prompts

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
    """In chunks, steps of prompts and answers, with shared prefixes that continue from kept states; some sequences
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
