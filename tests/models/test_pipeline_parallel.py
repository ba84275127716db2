"""Stages compute what one process does. Here they are threads; tests/e2e has them as processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tools.writers.record import WRITTEN

from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.sampling.sampler import Sampler
from stoker.model.pipeline_stages import division_problem

from .checkpoints import kinds
from .conftest import Saved
from .engine import Engine, assert_prompts_scored_alike, resolved
from .ranks import divided
from .test_generation import make_prompts
from .test_tensor_parallel import PROBABLE, outputs

STAGED = {"pipeline_parallel_size": 2}


@pytest.mark.effect("parallel.pipeline_parallel_size")
@pytest.mark.parametrize("family", kinds())
@pytest.mark.quick_cases(2)
def test_two_stages_compute_what_one_process_does(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    """With as many steps in flight."""
    _, folder = saved(family)
    alone = resolved(folder, tmp_path)
    if reason := division_problem(alone.model_spec, 1, 2):
        pytest.skip(reason)
    settings = resolved(folder, tmp_path, parallel=STAGED)
    assert settings.memory.weights_bytes < alone.memory.weights_bytes
    expected = outputs(Engine(alone))
    with divided(settings) as engine:
        found = outputs(engine)
        assert engine.max_in_flight == 2
    for (tokens, logprobs), (its, theirs) in zip(found, expected, strict=True):
        assert tokens == its
        assert logprobs == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "gpt_oss", "qwen3_next", "deepseek_v3", "gemma3"])
@pytest.mark.quick_cases(1)
def test_stages_of_two_ranks_each(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    _, folder = saved(family)
    alone = resolved(folder, tmp_path)
    expected = outputs(Engine(alone))
    with divided(resolved(folder, tmp_path, parallel={**STAGED, "tensor_parallel_size": 2})) as engine:
        found = outputs(engine)
    for (tokens, logprobs), (its, theirs) in zip(found, expected, strict=True):
        assert tokens == its
        assert logprobs == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("name", ["compressed-tensors-w4a16-gptq", "bitsandbytes-nf4-double"])
@pytest.mark.quick_cases(1)
def test_stages_keep_the_codes_of_a_quantised_checkpoint(name: str, tmp_path: Path):
    """With the kernels that this CPU runs; a stage has whole matrices."""
    alone = resolved(WRITTEN / name, tmp_path)
    expected = outputs(Engine(alone))
    with divided(resolved(WRITTEN / name, tmp_path, parallel=STAGED)) as engine:
        assert [tokens for tokens, _ in outputs(engine)] == [tokens for tokens, _ in expected]


def test_everything_that_requests_ask_for(saved: Callable[[str], Saved], tmp_path: Path):
    """Seeds, penalties, log-probabilities of prompts, of which some tokens of a step need logits."""
    _, folder = saved("llama")
    sampling = [
        SamplingParams(max_tokens=9, seed=7, top_p=0.9, ignore_eos=True),
        SamplingParams(max_tokens=9, seed=8, top_k=5, repetition_penalty=1.3, ignore_eos=True),
        SamplingParams(max_tokens=3, temperature=0, prompt_logprobs=2, ignore_eos=True),
    ] * 2
    expected = Engine(resolved(folder, tmp_path)).outputs(make_prompts(6), sampling)
    with divided(resolved(folder, tmp_path, parallel=STAGED)) as engine:
        found = engine.outputs(make_prompts(6), sampling)
    assert_prompts_scored_alike(found, expected)


def test_a_step_whose_sampling_fails_leaves_all_stages_ready_for_the_next(
    saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, folder = saved("qwen3")
    with divided(resolved(folder, tmp_path, parallel={**STAGED, "tensor_parallel_size": 2})) as engine:
        expected = outputs(engine)
        monkeypatch.setattr(Sampler, "sample", lambda *_: (_ for _ in ()).throw(ValueError("no")))
        engine.scheduler.add(EngineRequest(request_id="fails", inputs=RequestInputs([1, 2, 3], PROBABLE)))
        plan = engine.scheduler.schedule()
        assert plan is not None
        with pytest.raises(ValueError, match="no"):
            engine.runner.execute(plan)
        engine.scheduler.fail_step(plan, "sampling failed")
        monkeypatch.undo()
        assert outputs(engine) == expected
