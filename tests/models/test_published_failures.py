"""What drafts were reported to break in other engines, each rebuilt here.

The other tests of drafts cover most of it in parts; here each report has a test with its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.drafters import AnswerDrafter, AnyDrafter
from tests.slow_cases import slow
from tests.tiny_checkpoint import write_checkpoint

from stoker.config import Resolved
from stoker.engine.api import Constraint, EngineRequest, FinishReason, Reasoning, RequestInputs, SamplingParams
from stoker.engine.core import Scheduler
from stoker.engine.core.settings import DraftSettings
from stoker.engine.executor.build import build_core
from stoker.engine.executor.scheduler import scheduler_settings
from stoker.engine.runner.rejected_drafts import RejectedDrafts
from stoker.engine.spec_decode.network_drafts import NetworkDrafts
from stoker.engine.spec_decode.step_times import DraftTimes

from .checkpoints import build, save
from .conftest import Saved
from .draft_checkpoints import add_mtp, eagle3_chain, save_eagle3
from .engine import Engine, resolved
from .steered import steer
from .test_drafts import with_drafts
from .test_generation import make_prompts
from .test_model_drafts import AlwaysDrafts, Drafted, counted, drafting
from .test_structured import DIGITS, compile_grammars, run

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
ALONE = {"enable_prefix_caching": False}


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with recurrent states and a layer for multi-token prediction."""
    return add_mtp(save(build("qwen3_5"), tmp_path_factory.mktemp("hybrid") / "model"))


def conversation(engine: Engine, first: list[int], said: list[list[int]] | None = None) -> list[tuple[list[int], int]]:
    """Three turns. Returns the answer of each, and how many tokens of its prompt were cached."""
    prompt, found = first, []
    for turn in range(3):
        (output,) = engine.outputs([prompt], replace(GREEDY, max_tokens=11))
        found.append((output.token_ids, output.num_cached_tokens))
        prompt = [*prompt, *output.token_ids, 40 + turn, 50 + turn]
    return found


@pytest.mark.parametrize("wrong_every", [2, slow(3), slow(50)])
def test_published_failures_cached_prefixes_of_hybrids_with_mtp(
    wrong_every: int, hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere a state that was kept for a prefix was the one after rejected drafts, so that later turns of a
    conversation got other answers."""
    expected = conversation(Engine(resolved(hybrid, tmp_path, cache=ALONE)), make_prompts(1)[0])
    own = conversation(Engine(resolved(hybrid, tmp_path)), make_prompts(1)[0])
    engine = drafting(resolved(hybrid, tmp_path, speculative={"method": "mtp"}))
    prompt, answers = make_prompts(1)[0], {}
    for turn, (answer, _) in enumerate(expected):
        answers[tuple(prompt)] = answer
        prompt = [*prompt, *answer, 40 + turn, 50 + turn]
    steer(engine, answers, monkeypatch, wrong_every)
    found = conversation(engine, make_prompts(1)[0])
    assert [answer for answer, _ in found] == [answer for answer, _ in expected]
    assert [cached for _, cached in found] == [cached for _, cached in own]
    assert found[2][1] > found[1][1] > 0
    assert counted(engine)[1] > 5


@pytest.mark.parametrize("max_tokens", [7, slow(9), slow(13)])
def test_published_failures_chunks_that_end_within_a_block(
    max_tokens: int, hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere chunks of prompts ended within a block when drafts took a part of the step, and the state of another
    place was kept under the hash of the block: a fifth of the answers was wrong."""
    prompts = [[3 + (place * 7 + length) % 90 for place in range(length)] for length in range(14, 33, 2)]
    prompts += [[*prompt[:-5], 90, 91] for prompt in prompts]  # these continue from kept states
    scheduler = {"max_num_batched_tokens": max_tokens, "max_num_seqs": 4}
    expected = Engine(resolved(hybrid, tmp_path, cache=ALONE)).generate(prompts, GREEDY)
    engine = drafting(resolved(hybrid, tmp_path, scheduler=scheduler, speculative={"method": "mtp"}), 2)
    steer(engine, dict(zip(map(tuple, prompts), expected, strict=True)), monkeypatch)
    for _ in range(2):
        assert engine.generate(prompts, GREEDY) == expected
    assert engine.scheduler.stats().prefix_hits > 0
    assert counted(engine)[1] > 50


def test_published_failures_one_answer_of_eight_is_empty(
    hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere one of eight requests with the same prompt ended with its first token: it began with a state that the
    drafts of another had changed."""
    prompt = make_prompts(1)[0]
    sampled = [replace(GREEDY, temperature=1.0, seed=seed, ignore_eos=False) for seed in range(8)]
    expected = Engine(resolved(hybrid, tmp_path, cache=ALONE)).generate([prompt] * 8, sampled)
    engine = drafting(resolved(hybrid, tmp_path, speculative={"method": "mtp"}))
    steer(engine, {tuple(prompt): expected[0]}, monkeypatch)
    for _ in range(3):
        assert engine.generate([prompt] * 8, sampled) == expected
    assert min(map(len, expected)) > 1
    assert engine.scheduler.stats().prefix_hits > 0


def test_published_failures_another_number_of_drafts_is_no_new_kind_of_step(
    saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    """Elsewhere throughput fell to a tenth when the load crossed a limit: steps with another number of drafts had no
    captured graph."""
    sections = {"scheduler": {"max_num_batched_tokens": 64}, "speculative": {"method": "ngram"}}
    settings = resolved(saved("llama")[1], tmp_path, **sections)
    engine, prompts = Engine(settings), make_prompts(6)
    expected = engine.outputs(prompts, GREEDY)
    drafter = with_drafts(engine, settings, expected, prompts)
    drafter.wrong_every = 1000

    def under_load() -> tuple[int, int]:
        before = engine.runner.launches()
        for num_rows, max_drafts in ((1, 4), (6, 1), (6, 0), (3, 2), (1, 4)):
            drafter.max_tokens = max_drafts
            assert engine.generate(prompts[:num_rows], GREEDY) == [each.token_ids for each in expected[:num_rows]]
        after = engine.runner.launches()
        return after.captured - before.captured, after.kernels - before.kernels

    under_load()
    num_graphs = engine.runner.parts.body.decode_steps.num_graphs
    captured, single = under_load()
    assert engine.runner.parts.body.decode_steps.num_graphs == num_graphs
    assert captured > 40
    assert single < 0.3 * captured  # prompts, and rows that end with fewer drafts than others


def test_published_failures_more_is_accepted_than_was_drafted(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    """Elsewhere the number of accepted drafts was an index into states without a check, and a wrong one wrote into
    the memory of others."""
    settings = resolved(saved("qwen3_5")[1], tmp_path, speculative={"method": "ngram"})
    engine, prompts = Engine(settings), make_prompts(1)
    engine.scheduler = Scheduler(scheduler_settings(settings, drafting=DraftSettings(drafter=AnyDrafter())))
    engine.scheduler.add(EngineRequest(request_id="0", inputs=RequestInputs(prompts[0], GREEDY)))
    while not engine.runner.made.drafted_rows:
        plan = engine.scheduler.schedule()
        assert plan is not None
        engine.scheduler.finish_step(plan, engine.runner.execute(plan))
    (rejected,) = (copy for copy in engine.runner.parts.copies if isinstance(copy, RejectedDrafts))
    states = engine.runner.loaded.cache.states
    assert states is not None
    before, rows = [tensor.clone() for tensor in states._tensors], dict(engine.runner.made.drafted_rows)
    plan = engine.scheduler.schedule()
    assert plan is not None
    for wrong in (-50, 50):
        engine.runner.made.drafted_rows.update(rows)
        with pytest.raises(AssertionError):
            rejected.before(replace(plan, num_computed=plan.num_computed + np.int32(wrong)))
    assert all(map(torch.equal, before, states._tensors))


@pytest.mark.parametrize("wrong_every", [3, 1000])
@pytest.mark.parametrize("is_doubled", [False, True], ids=["", "doubled"])
def test_published_failures_a_grammar_begins_among_drafts(wrong_every: int, is_doubled: bool, tmp_path: Path) -> None:
    """Elsewhere a grammar stayed off, or had its first token twice, if the end of the reasoning was among accepted
    drafts."""
    folder = write_checkpoint(tmp_path / "checkpoint")
    reasoning = Reasoning(end="so: ", budget=9)
    asked = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=44, constraint=DIGITS, reasoning=reasoning)
        for seed in range(4)
    ]
    sections: dict[str, Any] = {"model": {"skip_tokenizer_init": False, "max_model_len": 64}}
    plain = build_core(resolved(folder, tmp_path, **sections))
    compile_grammars(plain, asked)
    expected = run(plain, asked)
    plain.close()
    settings = resolved(folder, tmp_path, speculative={"method": "ngram"}, **sections)
    engine = build_core(settings)
    compile_grammars(engine, asked)
    prompts = [list(range(20, 31))[: 3 + index % 7] for index in range(len(asked))]
    answers = {tuple(prompt): output.token_ids for prompt, output in zip(prompts, expected, strict=True)}
    drafter = (Doubling if is_doubled else AnswerDrafter)(answers, max_tokens=8, wrong_every=wrong_every)
    engine._scheduler = Scheduler(scheduler_settings(settings, drafting=DraftSettings(drafter=drafter)))
    found = run(engine, asked)
    assert [output.token_ids for output in found] == [output.token_ids for output in expected]
    assert all(output.finish_reason is FinishReason.COMPLETE for output in found)
    assert engine.stats.drafts is not None
    assert sum(engine.stats.drafts.accepted) > 20
    engine.close()


class Doubling(AnswerDrafter):
    """Each third draft is the one before it once more."""

    def drafts(self, slot: int, length: int, count: int) -> list[int]:
        found = super().drafts(slot, length, count)
        return [found[place - (place % 3 == 2)] for place in range(len(found))]


def test_published_failures_a_grammar_forbids_every_draft(tmp_path: Path) -> None:
    """Elsewhere the matcher of a grammar was given a draft that it forbids, and the request failed."""
    folder = write_checkpoint(tmp_path / "checkpoint")
    other = write_checkpoint(tmp_path / "other", tokenizer=False)  # the model itself, which knows no grammars
    long = Constraint('start: "(" /[0-9]{20}/ ")"')
    asked = [SamplingParams(temperature=0, max_tokens=40, constraint=long)] * 3
    sections: dict[str, Any] = {"model": {"skip_tokenizer_init": False, "max_model_len": 64}}
    expected, found = [], []
    for speculative in ({}, {"method": "draft_model", "model": str(other)}):
        settings = resolved(folder, tmp_path, speculative=speculative, **sections)
        engine = build_core(settings)
        compile_grammars(engine, asked[:1])
        if speculative:
            engine._scheduler = Scheduler(scheduler_settings(settings, drafting=DraftSettings(drafter=AlwaysDrafts(4))))
        expected, found = found, run(engine, asked)
        stats = engine.stats.drafts
        engine.close()
    assert [output.token_ids for output in found] == [output.token_ids for output in expected]
    assert all(output.finish_reason is FinishReason.COMPLETE for output in found)
    assert stats is not None
    assert sum(stats.accepted) < 0.1 * stats.tokens


@pytest.mark.parametrize("method", ["ngram", "mtp"])
def test_published_failures_cached_prompts_cost_no_more(method: str, hybrid: Path, tmp_path: Path) -> None:
    """Elsewhere the first token of a cached prompt came a third later with drafts: a block was computed again."""
    first_tokens: list[list[tuple[int, int]]] = []
    for speculative in ({}, {"method": method}):
        settings = resolved(hybrid, tmp_path, speculative=speculative)
        engine, computed = Engine(settings), []
        if speculative:
            drafter = AlwaysDrafts(3) if method == "mtp" else AnyDrafter(3)
            engine.scheduler = Scheduler(scheduler_settings(settings, drafting=DraftSettings(drafter=drafter)))
        for max_tokens in (9, 1):
            for prompt in make_prompts(6):
                before = engine.scheduler.stats().num_steps
                (output,) = engine.outputs([prompt], replace(GREEDY, max_tokens=max_tokens))
                computed.append((engine.scheduler.stats().num_steps - before, output.num_cached_tokens))
        first_tokens.append(computed[6:])
    assert first_tokens[0] == first_tokens[1]
    assert sum(cached for _, cached in first_tokens[0]) > 20


@pytest.mark.parametrize("survives", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("num_rows", [1, 4, 16, 64])
def test_published_failures_drafts_make_nothing_slower(survives: float, num_rows: int) -> None:
    """Elsewhere a network's drafts cost more than they brought, and steps were not planned ahead any more. Here steps
    take the times of a model that is limited by memory up to 8 tokens, and a draft a tenth of a step."""
    random = np.random.default_rng(3)

    def seconds(num_tokens: int) -> float:
        return 1.0 + 0.02 * num_tokens + 0.12 * max(0, num_tokens - 8)

    times = DraftTimes()
    times.steps.measure({size: seconds(size) for size in (1, 2, 4, 8, 16, 32, 64, 128)})
    times.drafts.measure({1: 0.1, 4: 0.4, 8: 0.8})
    drafter, slots = NetworkDrafts(64, times.steps, times.drafts, max_tokens=8), np.arange(num_rows)
    for slot in range(num_rows):
        drafter.admit(slot, [1])
    took, num_tokens = 0.0, 0
    for _ in range(1500):
        counts = drafter.counts(slots, np.full(num_rows, 8, np.int32))
        accepted = np.minimum((random.random((num_rows, 8)) < survives).cumprod(1).sum(1), counts).astype(np.int32)
        longest, all_drafts = int(counts.max()), int(counts.sum())
        step_s = seconds(num_rows + all_drafts)
        if longest:
            drafter.record_drafts(slots[counts > 0], counts[counts > 0], accepted[counts > 0], 0.1 * longest)
        drafter.record_step(num_rows, all_drafts, step_s)
        took, num_tokens = took + step_s + 0.1 * longest, num_tokens + num_rows + int(accepted.sum())
    gain = num_tokens / took / (num_rows / seconds(num_rows))
    assert gain > 0.98
    assert gain > 1.5 or survives < 0.9 or num_rows > 1


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_published_failures_nemotron_h_with_cached_prefixes_starts(
    method: str, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    """Elsewhere the engine did not start with drafts and a prefix cache for this family."""
    folder, prompts = saved("nemotron_h")[1], make_prompts(6)
    expected = Engine(resolved(folder, tmp_path, cache=ALONE)).generate(prompts, GREEDY)
    own: dict[str, Any] = {"method": method} | ({"model": str(saved("llama")[1])} if method == "draft_model" else {})
    settings = resolved(folder, tmp_path, speculative=own)
    engine = Engine(settings)
    drafter = AlwaysDrafts(3) if method == "draft_model" else AnyDrafter(3)
    engine.scheduler = Scheduler(scheduler_settings(settings, drafting=DraftSettings(drafter=drafter)))
    for _ in range(2):
        assert engine.generate(prompts, GREEDY) == expected
    assert engine.scheduler.stats().prefix_hits > 0


def test_published_failures_positions_beyond_what_the_layer_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere the rotations of a layer that says 32 positions were read beyond their end in longer sequences."""
    model = build("llama", num_hidden_layers=4)
    folder = save(model, tmp_path / "model")
    own = {"method": "eagle3", "model": str(save_eagle3(tmp_path / "eagle3"))}
    settings: Resolved = resolved(folder, tmp_path, speculative=own, model={"max_model_len": 128}, cache=ALONE)
    engine = drafting(settings, 3)
    recorded = Drafted(engine.runner.drafts, monkeypatch)
    engine.generate([[3 + place % 90 for place in range(60)]], replace(GREEDY, max_tokens=30))
    assert max(len(known) for known, _ in recorded.chains) > 80
    for known, chain in recorded.chains:
        assert chain == eagle3_chain(model, known, len(chain))
