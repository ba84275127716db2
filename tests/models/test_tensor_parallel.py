"""Several ranks compute what one process does. Here they are threads; tests/e2e has them as processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.runner import sample_head
from stoker.engine.sampling.sampler import Sampler
from stoker.model.tensor_parallel import tensor_parallel_problem

from .checkpoints import kinds
from .conftest import Saved
from .engine import Engine, assert_prompts_scored_alike, resolved
from .ranks import divided
from .test_generation import make_prompts

PROBABLE = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)


def outputs(engine: Engine) -> list[tuple[list[int], list[float]]]:
    found = engine.outputs(make_prompts(6), PROBABLE)
    return [(output.token_ids, [entry.logprobs[0] for entry in output.logprobs]) for output in found]


@pytest.mark.parametrize("family", kinds())
@pytest.mark.quick_cases(3)
def test_two_ranks_compute_what_one_process_does(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    _, folder = saved(family)
    alone = resolved(folder, tmp_path)
    if reason := tensor_parallel_problem(alone.model_spec, 2):
        pytest.skip(reason)
    settings = resolved(folder, tmp_path, parallel={"tensor_parallel_size": 2})
    assert settings.memory.weights_bytes < alone.memory.weights_bytes
    expected = outputs(Engine(alone))
    with divided(settings) as engine:
        found = outputs(engine)
    for (tokens, logprobs), (its, theirs) in zip(found, expected, strict=True):
        assert tokens == its
        assert logprobs == pytest.approx(theirs, abs=1e-4)


@pytest.mark.effect("parallel.disable_custom_all_reduce")
def test_gloo_gives_the_same(saved: Callable[[str], Saved], tmp_path: Path):
    _, folder = saved("qwen3")
    parallel = {"tensor_parallel_size": 2, "disable_custom_all_reduce": True}
    settings = resolved(folder, tmp_path, parallel=parallel)
    expected = outputs(Engine(resolved(folder, tmp_path)))
    with divided(settings) as engine:
        assert "Gloo" in engine.own.info().kernels["exchange"]
        assert engine.own.info().kernels["decode_step"] == "op by op: what Gloo does is not captured"
        assert [tokens for tokens, _ in outputs(engine)] == [tokens for tokens, _ in expected]


def test_four_ranks_of_which_two_have_the_same_key_head(saved: Callable[[str], Saved], tmp_path: Path):
    _, folder = saved("qwen3")
    alone = resolved(folder, tmp_path)
    assert {layer.mixer.num_kv_heads for layer in alone.model_spec.layers} == {2}  # type: ignore[union-attr]
    expected = outputs(Engine(alone))
    with divided(resolved(folder, tmp_path, parallel={"tensor_parallel_size": 4})) as engine:
        assert [tokens for tokens, _ in outputs(engine)] == [tokens for tokens, _ in expected]


def test_everything_that_requests_ask_for(saved: Callable[[str], Saved], tmp_path: Path):
    """Seeds, penalties, log-probabilities of prompts, and steps of more rows than are sampled at a time."""
    _, folder = saved("llama")
    sampling = [
        SamplingParams(max_tokens=9, seed=7, top_p=0.9, ignore_eos=True),
        SamplingParams(max_tokens=9, seed=8, top_k=5, repetition_penalty=1.3, ignore_eos=True),
        SamplingParams(max_tokens=3, temperature=0, prompt_logprobs=2, ignore_eos=True),
    ] * 2
    expected = Engine(resolved(folder, tmp_path)).outputs(make_prompts(6), sampling)
    with divided(resolved(folder, tmp_path, parallel={"tensor_parallel_size": 2})) as engine:
        found = engine.outputs(make_prompts(6), sampling)
    assert_prompts_scored_alike(found, expected)


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.quick_cases(1)
def test_steps_of_more_rows_than_are_sampled_at_a_time(
    num_stages: int, saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The ranks exchange the logits of the next rows, so they need the tokens of those before at once."""
    _, folder = saved("qwen3")
    expected = Engine(resolved(folder, tmp_path)).outputs(make_prompts(7), PROBABLE)
    monkeypatch.setattr(sample_head, "LOGIT_ROWS", 3)
    parallel = {"tensor_parallel_size": 2, "pipeline_parallel_size": num_stages}
    with divided(resolved(folder, tmp_path, parallel=parallel)) as engine:
        found = engine.outputs(make_prompts(7), PROBABLE)
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]


def test_a_step_whose_sampling_fails_leaves_all_ranks_ready_for_the_next(
    saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, folder = saved("qwen3")
    with divided(resolved(folder, tmp_path, parallel={"tensor_parallel_size": 2})) as engine:
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
