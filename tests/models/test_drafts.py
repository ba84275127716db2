"""Drafts change no token: each kind of KV cache, of sampling and of company, on one process, ranks and stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.drafters import AnswerDrafter
from tests.slow_cases import slow
from tests.tiny_checkpoint import write_checkpoint

from stoker.engine.api import EngineOutput, FinishReason, SamplingParams
from stoker.engine.core import Scheduler
from stoker.engine.core.settings import DraftSettings
from stoker.engine.executor.build import build_core
from stoker.engine.executor.scheduler import draft_settings, scheduler_settings
from stoker.engine.sampling import sampler as sampler_module
from stoker.engine.sampling.logprobs import token_logprobs
from stoker.engine.spec_decode.prompt_lookup import PromptLookup
from stoker.engine.spec_decode.step_times import DraftTimes, StepTimes

from .conftest import Saved
from .engine import WITH_GPU, Engine, resolved
from .ranks import divided
from .test_generation import FEW_BLOCKS, ONE_GROUP, make_prompts
from .test_structured import DIGITS, FREE, LIST, compile_grammars, run

NUM_REQUESTS = 12
SAMPLINGS = (
    SamplingParams(temperature=0),
    SamplingParams(logprobs=2),
    SamplingParams(top_k=5, top_p=0.9, min_p=0.02),
    SamplingParams(temperature=0.7, presence_penalty=0.5, frequency_penalty=0.2, repetition_penalty=1.2, logprobs=1),
    SamplingParams(logit_bias={5: 2.0}, bad_word_ids=((7, 8), (9,)), min_tokens=9),
    SamplingParams(temperature=0, prompt_logprobs=1, allowed_token_ids=tuple(range(3, 40))),
)
# A cache of each kind: dense, windows, latent, experts, keys that layers share, compressed by the library's modules.
FAMILIES = ["llama", slow("gemma3"), slow("deepseek_v3"), slow("qwen3_moe"), slow("gemma4"), slow("gpt_oss")]


def samplings() -> list[SamplingParams]:
    return [
        replace(SAMPLINGS[index % len(SAMPLINGS)], seed=index, max_tokens=24 + index) for index in range(NUM_REQUESTS)
    ]


def with_drafts(engine: Engine, settings: Any, expected: list[EngineOutput], prompts: list[list[int]]) -> AnswerDrafter:
    """Replaces the scheduler of the engine by one that drafts."""
    answers = {tuple(prompt): output.token_ids for prompt, output in zip(prompts, expected, strict=True)}
    drafter = AnswerDrafter(answers)
    drafting = DraftSettings(drafter=drafter, in_order=settings.topology.num_ranks == 1)
    engine.scheduler = Scheduler(scheduler_settings(settings, drafting=drafting))
    return drafter


def assert_same(found: list[EngineOutput], expected: list[EngineOutput]) -> None:
    for mine, its in zip(found, expected, strict=True):
        assert mine.token_ids == its.token_ids
        assert mine.finish_reason == its.finish_reason
        for name in ("logprobs", "prompt_logprobs"):
            entries, theirs = getattr(mine, name), getattr(its, name)
            assert (entries is None) == (theirs is None)
            for entry, other in zip(entries or [], theirs or [], strict=True):
                if entry is not None:
                    assert entry.token_ids == other.token_ids
                    assert entry.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", [{}, FEW_BLOCKS], ids=["", "preempted"])
@pytest.mark.parametrize("is_eager", [False, slow(True)], ids=["", "torch"])
def test_all_kinds_of_requests_get_the_same_tokens(
    family: str, cache: dict[str, int], is_eager: bool, saved: Callable[[str], Saved], tmp_path: Path
):
    """In chunks, steps of prompts and answers, with shared prefixes; some sequences preempted."""
    prompts, folder = make_prompts(NUM_REQUESTS), saved(family)[1]
    settings = resolved(folder, tmp_path, cache=cache, scheduler=ONE_GROUP, model={"enforce_eager": is_eager})
    engine = Engine(settings)
    expected = engine.outputs(prompts, samplings())
    num_steps = engine.scheduler.stats().num_steps
    with_drafts(engine, settings, expected, prompts)
    assert_same(engine.outputs(prompts, samplings()), expected)
    stats = engine.scheduler.stats()
    assert stats.drafts is not None
    assert 0 < sum(stats.drafts.accepted) < stats.drafts.tokens
    assert stats.num_steps < num_steps
    assert (stats.num_preemptions > 0) == bool(cache)
    assert stats.num_free_blocks == stats.num_blocks
    assert stats.prefix_hits > 0
    assert_same(engine.outputs(prompts, samplings()), expected)  # what was drafted and rejected is in no cached block


def count_logprobs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled with the number of rows in each call that computes log-probabilities of tokens."""
    rows: list[int] = []

    def counted(logits: Any, token_ids: Any, counts: list[int], *rest: Any, **options: Any) -> Any:
        rows.append(len(counts))
        return token_logprobs(logits, token_ids, counts, *rest, **options)

    monkeypatch.setattr(sampler_module, "token_logprobs", counted)
    return rows


@pytest.mark.parametrize("mode", [{}, {"processed_logprobs": True}], ids=["raw", "processed"])
@pytest.mark.parametrize("penalties", [{}, {"presence_penalty": 0.5}], ids=["", "in order"])
def test_log_probabilities_are_computed_of_valid_tokens_only(
    mode: dict[str, bool],
    penalties: dict[str, float],
    saved: Callable[[str], Saved],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """They were computed of every output, also after a rejected draft: a pass over the vocabulary for each."""
    settings, prompts = resolved(saved("llama")[1], tmp_path), make_prompts(3)
    engine = Engine(settings)
    params = SamplingParams(seed=3, max_tokens=20, ignore_eos=True, logprobs=2, **mode, **penalties)
    expected = engine.outputs(prompts, params)
    with_drafts(engine, settings, expected, prompts)
    rows = count_logprobs(monkeypatch)
    assert_same(engine.outputs(prompts, params), expected)
    stats = engine.scheduler.stats()
    assert stats.drafts is not None
    assert 0 < sum(stats.drafts.accepted) < stats.drafts.tokens
    assert sum(rows) == 3 * 20


BOTH = {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}


@pytest.mark.parametrize(
    "parallel",
    [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}, slow(BOTH)],
    ids=["tensor", "stages", "both"],
)
def test_ranks_and_stages(parallel: dict[str, int], saved: Callable[[str], Saved], tmp_path: Path):
    """Sequences with penalties get no drafts there: only rank 0 knows what was sampled before."""
    prompts, folder = make_prompts(NUM_REQUESTS), saved("llama")[1]
    expected = Engine(resolved(folder, tmp_path)).outputs(prompts, samplings())
    settings = resolved(folder, tmp_path, parallel=parallel)
    with divided(settings) as engine:
        drafter = with_drafts(engine, settings, expected, prompts)
        assert_same(engine.outputs(prompts, samplings()), expected)
        stats = engine.scheduler.stats()
    assert stats.drafts is not None
    assert sum(stats.drafts.accepted) > 0
    with_penalties = [tuple(prompts[index]) for index in range(NUM_REQUESTS) if index % 6 == 3]
    assert drafter.admitted
    assert not set(with_penalties) & drafter.admitted


def test_the_text_of_a_request_is_drafted(saved: Callable[[str], Saved], tmp_path: Path):
    """Greedy answers of a small random model repeat themselves."""
    settings = resolved(saved("llama")[1], tmp_path, scheduler={"max_num_batched_tokens": 256})
    engine, prompts = Engine(settings), make_prompts(NUM_REQUESTS)
    greedy = SamplingParams(temperature=0, max_tokens=36, ignore_eos=True)
    expected = engine.outputs(prompts, greedy)
    times = StepTimes()
    times.measure({1: 1.0, 16: 1.1})
    drafting = DraftSettings(drafter=PromptLookup(8, 64, times))
    engine.scheduler = Scheduler(scheduler_settings(settings, drafting=drafting))
    assert_same(engine.outputs(prompts, greedy), expected)
    counts = engine.scheduler.stats().drafts
    assert counts is not None
    assert sum(counts.accepted) > 0


@pytest.mark.parametrize("is_ahead", [False, True])
def test_grammars_and_drafts(is_ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A draft that a grammar forbids is never accepted, and an answer that is complete has no token more."""
    folder = write_checkpoint(tmp_path / "checkpoint")
    hot: dict[str, Any] = {"temperature": 1.0, "max_tokens": 30}
    asked = [
        SamplingParams(**hot, seed=1, constraint=DIGITS),
        FREE,
        SamplingParams(**hot, seed=2, constraint=LIST, logprobs=2),
        SamplingParams(**hot, seed=4, constraint=DIGITS, top_k=3, logit_bias={5: 9.0}),
    ]
    sections = {"scheduler": {"async_scheduling": is_ahead, "max_num_seqs": 4}}
    model = {"skip_tokenizer_init": False, "max_model_len": 48}
    plain = build_core(resolved(folder, tmp_path, model=model, **sections))
    compile_grammars(plain, asked)
    expected = run(plain, asked)
    settings = resolved(folder, tmp_path, model=model, speculative={"method": "ngram"}, **sections)
    engine = build_core(settings)
    compile_grammars(engine, asked)
    prompts = [list(range(20, 31))[: 3 + index % 7] for index in range(len(asked))]
    answers = {tuple(prompt): output.token_ids for prompt, output in zip(prompts, expected, strict=True)}
    drafting = DraftSettings(drafter=AnswerDrafter(answers, wrong_every=4))
    monkeypatch.setattr(engine, "_scheduler", Scheduler(scheduler_settings(settings, drafting=drafting)))
    found = run(engine, asked)
    assert [output.token_ids for output in found] == [output.token_ids for output in expected]
    assert found[0].finish_reason is FinishReason.COMPLETE
    assert found[0].finish_reason == expected[0].finish_reason
    assert engine.stats.drafts is not None
    assert sum(engine.stats.drafts.accepted) > 0
    engine.close()


def drafting_of(settings: Any) -> DraftSettings:
    times = DraftTimes()
    times.steps.measure({1: 1.0, 100: 1.1})
    found = draft_settings(settings, times)
    assert found is not None
    return found


def longest_draft(settings: Any, prompt: list[int]) -> int:
    drafter = drafting_of(settings).drafter
    drafter.admit(0, prompt)
    return int(drafter.counts(np.array([0]), np.array([50], np.int32))[0])


@pytest.mark.effect("speculative.method")
def test_a_server_that_drafts_says_so_and_counts(saved: Callable[[str], Saved], tmp_path: Path):
    folder = saved("llama")[1]
    for speculative in ({"method": "ngram"}, {"method": "auto"}):
        core = build_core(resolved(folder, tmp_path, speculative=speculative))
        said = core.info.kernels["drafts"]
        assert said.startswith("at most 16 tokens, from the text of a request; a step of 17 takes ")
        assert core.info.phases["drafts"] > 0
        assert core.stats.drafts is not None
        core.close()
    core = build_core(resolved(folder, tmp_path))
    assert "drafts" not in core.info.kernels
    assert core.stats.drafts is None
    core.close()


def test_auto_drafts_where_it_can(saved: Callable[[str], Saved], tmp_path: Path):
    speculative = {"method": "auto"}
    for family in ("llama", "qwen3_next"):
        assert resolved(saved(family)[1], tmp_path, speculative=speculative).speculative.method == "ngram"
    with_gpu = resolved(saved("llama")[1], tmp_path, WITH_GPU, speculative=speculative, device={"device": "cuda"})
    assert with_gpu.speculative.method is None


@pytest.mark.effect("speculative.num_speculative_tokens")
def test_no_more_tokens_than_are_allowed_are_drafted(saved: Callable[[str], Saved], tmp_path: Path):
    prompt = [5, 6, 7, *range(10, 30), 5, 6, 7]
    for most in (1, 3, 12):
        speculative = {"method": "ngram", "num_speculative_tokens": most}
        assert longest_draft(resolved(saved("llama")[1], tmp_path, speculative=speculative), prompt) == most


@pytest.mark.effect("speculative.prompt_lookup_min", "speculative.prompt_lookup_max")
def test_how_many_tokens_must_agree(saved: Callable[[str], Saved], tmp_path: Path):
    folder, prompt = saved("llama")[1], [5, 6, 7, 8, 30, 31, 6, 7, 8]
    for least, has_drafts in ((1, True), (3, True), (4, False)):
        settings = resolved(folder, tmp_path, speculative={"method": "ngram", "prompt_lookup_min": least})
        assert (longest_draft(settings, prompt) > 0) == has_drafts
    prompt = [1, 2, 3, 50, 9, 2, 3, 60, 7, 1, 2, 3]
    for most, token_id in ((2, 60), (3, 50)):
        settings = resolved(folder, tmp_path, speculative={"method": "ngram", "prompt_lookup_max": most})
        drafter = drafting_of(settings).drafter
        drafter.admit(0, prompt)
        assert drafter.drafts(0, len(prompt), 1) == [token_id]


@pytest.mark.effect("speculative.past_output_tokens")
def test_earlier_answers_are_drafted_from(saved: Callable[[str], Saved], tmp_path: Path):
    """Also with a real model, where answers are the same. Which sequences share: tests/server/test_drafts.py."""
    prompts = [[5, 6, 7, 9], [8, 6, 7, 9]]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    expected: list[EngineOutput] = []
    for num_tokens, has_drafts in ((0, False), (1000, True)):
        speculative = {"method": "ngram", "past_output_tokens": num_tokens, "prompt_lookup_min": 16}
        settings = resolved(saved("llama")[1], tmp_path, speculative=speculative)
        engine = Engine(settings)
        expected = expected or engine.outputs([prompts[0]] * 2, params)
        engine.scheduler = Scheduler(scheduler_settings(settings, drafting=drafting_of(settings)))
        assert_same(engine.outputs(prompts[:1], params) + engine.outputs(prompts[:1], params), expected)
        counts = engine.scheduler.stats().drafts
        assert counts is not None
        assert (sum(counts.accepted) > 10) == has_drafts


@pytest.mark.effect("speculative.max_model_len", "speculative.disable_by_batch_size")
def test_which_sequences_get_drafts(saved: Callable[[str], Saved], tmp_path: Path):
    """What the scheduler does with both is in tests/unit/engine/core/test_drafting.py."""
    folder = saved("llama")[1]
    speculative = {"method": "ngram", "max_model_len": 20, "disable_by_batch_size": 3}
    found = drafting_of(resolved(folder, tmp_path, speculative=speculative))
    assert (found.max_model_len, found.max_num_waiting) == (20, 3)
    found = drafting_of(resolved(folder, tmp_path, speculative={"method": "ngram"}))
    assert found.max_model_len == 64
    assert found.max_num_waiting > 1 << 30
