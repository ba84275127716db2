"""Every method of drafting with every kind of cache: greedy answers are the tokens of an engine without drafts.

In each cell prompts are computed in chunks beside answers, prefixes are shared, sequences are preempted, and some
answers obey a grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.slow_cases import slow
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from stoker.config import Resolved
from stoker.engine.api import Constraint, EngineOutput, EngineRequest, FinishReason, RequestInputs, SamplingParams
from stoker.engine.core import Scheduler
from stoker.engine.core.settings import DraftSettings
from stoker.engine.executor.scheduler import draft_settings, scheduler_settings
from stoker.engine.runner.sampled_outputs import SampledOutputs
from stoker.engine.spec_decode.step_times import DraftTimes
from stoker.engine.structured.grammars import Grammars
from stoker.engine.structured.guidance import Guidance

from .checkpoints import VOCAB, build, save
from .draft_checkpoints import add_mtp, save_eagle3
from .engine import Engine, resolved
from .steered import steer
from .test_generation import make_prompts
from .test_model_drafts import AlwaysDrafts

# A family of each kind of cache. Layers with windows have blocks of their own, and fewer of them.
CACHES = {"dense": "llama", "windows": "gemma3", "latent": "deepseek_v3", "recurrent": "qwen3_5", "experts": "glm4_moe"}
BLOCKS = {"windows": 11}
METHODS = ("ngram", "earlier answers", "prediction", "draft_model", "eagle3", "mtp")
WITH_MTP = ("latent", "recurrent", "experts")  # no family with windows or plain attention has such a layer here
IN_EVERY_RUN = {
    *(("ngram", "dense"), ("earlier answers", "latent"), ("prediction", "recurrent")),
    *(("draft_model", "windows"), ("eagle3", "recurrent"), ("mtp", "experts")),
}
CELLS = [
    (method, kind) if (method, kind) in IN_EVERY_RUN else slow(method, kind)
    for method in METHODS
    for kind in CACHES
    if method != "mtp" or kind in WITH_MTP
]
NUM_REQUESTS, NUM_TOKENS = 12, 26
OF_GRAMMAR = (2, 3, 7)  # the second one shares its prefix with others
GRAMMAR = Constraint('start: "(" /[a-f]{3}/ ") = " /[0-9]{6}/ "."')


def characters() -> Tokenizer:
    """A vocabulary of as many tokens as the models have: printable characters of ASCII, and two special tokens."""
    texts = ["<|pad|>", "<|extra|>", "<|end|>", "Ġ", *map(chr, range(33, 126))]
    assert len(texts) == VOCAB
    found = Tokenizer(models.BPE({text: index for index, text in enumerate(texts)}, []))
    found.add_special_tokens(texts[:3])
    found.pre_tokenizer, found.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return found


def samplings() -> list[SamplingParams]:
    """Every other answer has few different tokens, so that it repeats itself."""
    plain = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    every = [plain, replace(plain, allowed_token_ids=(5, 17, 40, 71))] * (NUM_REQUESTS // 2)
    for index in OF_GRAMMAR:
        every[index] = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, constraint=GRAMMAR)
    return every


@dataclass(frozen=True)
class Case:
    """A model of a kind of cache, and what an engine without drafts answers."""

    settings: Callable[..., Resolved]  # of sections of a deployment
    folder: Path
    prompts: list[list[int]]
    expected: list[EngineOutput]


def engine_of(settings: Resolved) -> Engine:
    grammars = Grammars(lambda: Guidance(characters(), VOCAB, (2,)), VOCAB, (2,), waits=True)
    grammars.prepare(samplings()[OF_GRAMMAR[0]])  # compiled: the sequences begin at once
    return Engine(settings, grammars=grammars)


def ask(engine: Engine, case_prompts: Sequence[list[int]], predictions: Sequence[list[int]] = ()) -> list[EngineOutput]:
    requests = [
        EngineRequest(
            request_id=str(index),
            inputs=RequestInputs(prompt, sampling),
            prediction=predictions[index] if predictions else [],
        )
        for index, (prompt, sampling) in enumerate(zip(case_prompts, samplings(), strict=True))
    ]
    found = engine.run(requests)
    return [found[str(index)] for index in range(len(requests))]


@pytest.fixture(scope="module")
def case_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    made: dict[str, Case] = {}

    def of(kind: str) -> Case:
        if kind not in made:
            place = tmp_path_factory.mktemp(kind)
            folder = save(build(CACHES[kind]), place / "model")
            if kind in WITH_MTP:
                add_mtp(folder)
            cache = {"num_gpu_blocks_override": BLOCKS.get(kind, 14)}
            settings = partial(resolved, folder, place, cache=cache)
            prompts = make_prompts(NUM_REQUESTS)
            made[kind] = Case(settings, folder, prompts, ask(engine_of(settings()), prompts))
        return made[kind]

    return of


def own_section(method: str, case: Case, place: Path) -> dict[str, Any]:
    """The section `speculative` of a method."""
    if method == "draft_model":
        return {"method": method, "model": str(save(build("qwen3"), place / "qwen3"))}
    if method == "eagle3":
        layers = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]}}
        return {"method": method, "model": str(save_eagle3(place / "eagle3", **layers))}
    if method == "mtp":
        return {"method": method}
    kept = 1000 if method == "earlier answers" else 0
    return {"method": "ngram", "num_speculative_tokens": 6, "past_output_tokens": kept}


def drafting(settings: Resolved) -> DraftSettings:
    """Drafts always pay. A network drafts in every step."""
    times = DraftTimes()
    times.steps.measure({1: 1.0, 100: 1.1})
    found = draft_settings(settings, times)
    assert found is not None
    return found if settings.speculative.method == "ngram" else replace(found, drafter=AlwaysDrafts(4), reader=None)


def said_by(case: Case) -> list[list[int]]:
    """Predictions of which one token in seven is not what will be said."""
    wrong = [[place % 7 == 5 for place in range(len(each.token_ids))] for each in case.expected]
    return [
        [(token_id + is_wrong) % VOCAB for token_id, is_wrong in zip(each.token_ids, own, strict=True)]
        for each, own in zip(case.expected, wrong, strict=True)
    ]


@pytest.mark.parametrize(("method", "kind"), CELLS)
def test_greedy_answers_are_the_same_tokens(
    method: str, kind: str, case_of: Callable[[str], Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(kind)
    settings = case.settings(speculative=own_section(method, case, tmp_path))
    engine = engine_of(settings)
    engine.scheduler = Scheduler(scheduler_settings(settings, drafting=drafting(settings)))
    answers = {tuple(prompt): each.token_ids for prompt, each in zip(case.prompts, case.expected, strict=True)}
    steer(engine, answers, monkeypatch)
    said = said_by(case)
    for _ in range(2):  # the second time from what the first has left in the caches, and from its answers
        found = ask(engine, case.prompts, said if method == "prediction" else ())
        assert [each.token_ids for each in found] == [each.token_ids for each in case.expected]
        assert [each.finish_reason for each in found] == [each.finish_reason for each in case.expected]
    assert all(found[index].finish_reason is FinishReason.COMPLETE for index in OF_GRAMMAR)
    stats = engine.scheduler.stats()
    assert stats.drafts is not None
    assert 0 < sum(stats.drafts.accepted) < stats.drafts.tokens
    assert stats.num_preemptions > 0
    assert stats.prefix_hits > 0
    assert engine.num_mixed_steps > 0
    assert stats.num_free_blocks == stats.num_blocks


def test_one_wrong_token_that_is_accepted_changes_an_answer(
    case_of: Callable[[str], Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, right, left = case_of("dense"), SampledOutputs.take, [1]

    def take(self: SampledOutputs, part: Any, sampled: Any) -> None:
        right(self, part, sampled)
        drafts = self._table.token_ids[self.slots[part], self.lengths[part]]
        has_draft = np.append(self._num_before[1:] > 0, False)[part]
        wrong = np.flatnonzero(has_draft & (drafts != self._token_ids[part]))[: left[0]]
        self._token_ids[part[wrong]] = drafts[wrong]
        left[0] -= len(wrong)

    monkeypatch.setattr(SampledOutputs, "take", take)
    settings = case.settings(speculative=own_section("prediction", case, tmp_path))
    engine = engine_of(settings)
    engine.scheduler = Scheduler(scheduler_settings(settings, drafting=drafting(settings)))
    found = ask(engine, case.prompts, said_by(case))
    pairs = zip(found, case.expected, strict=True)
    assert left == [0]
    assert sum(mine.token_ids != its.token_ids for mine, its in pairs) == 1
