"""Answers of three tokens, with drafts, have the probabilities that the sampling parameters define.

The model is a table: the logits of a token depend on the token before it. What is tested is the engine's slot table,
sampler and verification. The exact probabilities are computed here, token by token in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.slow_cases import slow, slow_but

from stoker.engine.api import SamplingParams
from stoker.engine.kernels import KernelSet, select_kernels
from stoker.engine.runner.sampled_outputs import SampledOutputs
from stoker.engine.runner.slot_table import SlotTable
from stoker.engine.runner.step_input import logit_tokens
from stoker.engine.sampling import sampler as sampler_module
from stoker.engine.sampling.sampler import Sampler
from stoker.engine.sampling.sampling_table import SamplingTable

from .plans import admission, make_plan

VOCAB, NUM_TOKENS, NUM_ANSWERS, NUM_SLOTS = 7, 3, 100_000, 2500
PROMPT = [3, 5]
LOGITS = np.random.default_rng(11).normal(0, 1.5, (VOCAB, VOCAB)).astype(np.float32)  # [token before, token]
PARAMS = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top-k": {"top_k": 3, "temperature": 1.3},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.12},
    "penalties": {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.4},
    "bias": {"logit_bias": {1: 1.5, 4: -2.0}, "min_tokens": 2},
    "bad words": {"bad_word_ids": ((1, 2), (6, 6), (0,), (2, 1, 5))},
    "all together": {
        "temperature": 1.4,
        "top_k": 5,
        "top_p": 0.95,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "logit_bias": {5: 1.0},
        "bad_word_ids": ((3, 4), (1, 1)),
    },
}
END = 2  # the model's end of a text, which goes on here


def probabilities(params: SamplingParams, said: Sequence[int]) -> npt.NDArray[np.float64]:
    """[VOCAB] Of the token after the prompt and these."""
    logits = LOGITS[[*PROMPT, *said][-1]].astype(np.float64)
    for token_id, bias in params.logit_bias.items():
        logits[token_id] += bias
    for word in params.bad_word_ids:
        if tuple(said[len(said) + 1 - len(word) :]) == word[:-1] and len(word) <= len(said) + 1:
            logits[word[-1]] = -np.inf
    if len(said) < params.min_tokens:
        logits[END] = -np.inf
    for token_id in {*PROMPT, *said}:
        above = logits[token_id] > 0
        logits[token_id] *= 1 / params.repetition_penalty if above else params.repetition_penalty
        if token_id in said:
            logits[token_id] -= params.presence_penalty + params.frequency_penalty * said.count(token_id)
    found = np.exp((logits - logits.max()) / params.temperature)
    found[found < params.min_p] = 0
    order = np.argsort(-found)
    if params.top_k:
        found[order[params.top_k :]] = 0
    found /= found.sum()
    before = np.cumsum(found[order]) - found[order]
    found[order[before >= params.top_p]] = 0
    return found / found.sum()


def exact(params: SamplingParams) -> npt.NDArray[np.float64]:
    """[VOCAB ** NUM_TOKENS] Of each answer."""
    return np.array(
        [
            np.prod([probabilities(params, said[:place])[said[place]] for place in range(NUM_TOKENS)])
            for said in map(list, itertools.product(range(VOCAB), repeat=NUM_TOKENS))
        ]
    )


class Answers:
    """Counts answers, which sequences in all slots get at the same time."""

    def __init__(self, params: SamplingParams, kernels: KernelSet) -> None:
        sampling = SamplingTable(NUM_SLOTS, VOCAB, (END,))
        self.table = SlotTable(NUM_SLOTS, 8, 4, sampling)
        self.table.apply(
            make_plan(
                admissions=[admission(slot, PROMPT, [slot, slot], **vars_of(params)) for slot in range(NUM_SLOTS)]
            )
        )
        self.sampler = Sampler(sampling, kernels)
        self.counts = np.zeros(VOCAB**NUM_TOKENS, np.int64)
        self.num_steps = self.num_drafts = self.num_accepted = 0
        self._random = np.random.default_rng(7)

    def sample(self) -> None:
        table, sampling, start = self.table, self.table.sampling, len(PROMPT)
        table.num_tokens[:] = start
        sampling.counts[:] = 0
        sampling.seed[:] = np.arange(NUM_SLOTS, dtype=np.uint64) + np.uint64(self.counts.sum())
        while len(slots := np.flatnonzero(table.num_tokens < start + NUM_TOKENS).astype(np.int32)):
            lengths = table.num_tokens[slots]
            counts = start + NUM_TOKENS - 1 - lengths
            for place in range(int(counts.max())):
                own, known = slots[counts > place], lengths[counts > place] + place
                logits = LOGITS[table.token_ids[own, known - 1]]
                # The most probable token, the least probable one, and any: what is drafted most is not said most.
                choices = np.stack((logits.argmax(1), logits.argmin(1), self._random.integers(0, VOCAB, len(own))))
                table.token_ids[own, known] = choices[self._random.integers(0, 3, len(own)), np.arange(len(own))]
            self._step(slots, lengths, counts)
        answers = table.token_ids[:, start : start + NUM_TOKENS] @ VOCAB ** np.arange(NUM_TOKENS)[::-1]
        self.counts += np.bincount(answers, minlength=len(self.counts))

    def _step(self, slots: Any, lengths: Any, counts: Any) -> None:
        num_tokens = (1 + counts).astype(np.int32)
        plan = make_plan(
            slots=slots, num_computed=(lengths - 1).astype(np.int32), num_tokens=num_tokens, num_outputs=num_tokens
        )
        taken = SampledOutputs(plan, logit_tokens(plan, self.table), self.table)
        for part in taken.parts(1 << 30, self.sampler.needs_order(taken.slots)):
            own, known = taken.slots[part], taken.lengths[part]
            logits = torch.from_numpy(LOGITS[self.table.token_ids[own, known - 1]])
            taken.take(part, self.sampler.sample(logits, own, known, self.table.token_ids))
        taken.result()
        self.num_steps += 1
        self.num_drafts += int(counts.sum())
        self.num_accepted += int((self.table.num_tokens[slots] - lengths - 1).sum())


def vars_of(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in params.__dataclass_fields__}


def excess(counts: npt.NDArray[np.int64], expected: npt.NDArray[np.float64]) -> float:
    """How many standard deviations the chi-square of the counts lies above its mean.

    Cells with less than five expected counts are one cell. What has no probability must not occur. The cube root of a
    chi-square is nearly normal: Wilson and Hilferty, PNAS 17 (1931).
    """
    total = counts.sum()
    assert not counts[expected == 0].any()
    is_large = expected * total >= 5
    own = np.array([*counts[is_large], counts[~is_large].sum()])
    its = np.array([*expected[is_large], expected[~is_large].sum()]) * total
    own, its = own[its > 0], its[its > 0]
    statistic, free = float(((own - its) ** 2 / its).sum()), len(own) - 1
    variance = 2 / (9 * free)
    return float(((statistic / free) ** (1 / 3) - (1 - variance)) / variance**0.5)


def largest_excess(found: Answers, params: SamplingParams) -> float:
    """Of whole answers, and of the token in each place, where fewer cells show a smaller bias."""
    shape, places = (VOCAB,) * NUM_TOKENS, range(NUM_TOKENS)
    counts, expected = found.counts.reshape(shape), exact(params).reshape(shape)
    others = [tuple(each for each in places if each != place) for place in places]
    of_places = [excess(counts.sum(axes), expected.sum(axes)) for axes in others]
    return max(excess(counts.reshape(-1), expected.reshape(-1)), *of_places)


@pytest.fixture(scope="module")
def kernels() -> KernelSet:
    return select_kernels("cpu", torch.float32, 64)


def answers_of(params: SamplingParams, kernels: KernelSet) -> Answers:
    found = Answers(params, kernels)
    for _ in range(NUM_ANSWERS // NUM_SLOTS):
        found.sample()
    assert found.counts.sum() == NUM_ANSWERS
    return found


@pytest.mark.parametrize("name", slow_but(PARAMS, "temperature", "top-p", "penalties", "bias"))
def test_answers_have_their_exact_probabilities(name: str, kernels: KernelSet) -> None:
    params = SamplingParams(**PARAMS[name])  # type: ignore[arg-type]
    found = answers_of(params, kernels)
    assert 10_000 < found.num_accepted < 0.5 * found.num_drafts
    assert largest_excess(found, params) < 4


Wrong = Callable[..., Any]


def one_wrong_token_in_fifty_is_accepted(right: Wrong) -> Wrong:
    random = np.random.default_rng(5)

    def take(self: SampledOutputs, part: Any, sampled: Any) -> None:
        right(self, part, sampled)
        drafts = self._table.token_ids[self.slots[part], self.lengths[part]]
        has_draft = np.append(self._num_before[1:] > 0, False)[part]
        is_accepted = has_draft & (random.random(len(part)) < 0.02)
        self._token_ids[part] = np.where(is_accepted, drafts, self._token_ids[part])

    return take


def a_token_after_a_wrong_draft_counts(right: Wrong) -> Wrong:
    """It was sampled from what would follow the draft."""

    def parts(self: SampledOutputs, *arguments: Any) -> Any:
        yield from right(self, *arguments)
        self._is_valid[self._num_before == 1] = True

    return parts


def all_places_have_the_noise_of_the_first(right: Wrong) -> Wrong:
    return lambda seeds, positions: right(seeds, np.full_like(positions, len(PROMPT)))


def drafts_are_not_counted(right: Wrong) -> Wrong:
    return lambda self, slots: np.zeros(len(slots), np.bool_)


MUTATIONS = [
    (one_wrong_token_in_fifty_is_accepted, SampledOutputs, "take", "plain"),
    slow(a_token_after_a_wrong_draft_counts, SampledOutputs, "parts", "plain"),
    slow(all_places_have_the_noise_of_the_first, sampler_module, "row_keys", "plain"),
    slow(drafts_are_not_counted, Sampler, "needs_order", "penalties"),
]


@pytest.mark.parametrize(("mutation", "owner", "method", "name"), MUTATIONS)
def test_a_biased_verification_is_found(
    mutation: Callable[[Wrong], Wrong],
    owner: Any,
    method: str,
    name: str,
    kernels: KernelSet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, method, mutation(getattr(owner, method)))
    params = SamplingParams(**PARAMS[name])  # type: ignore[arg-type]
    assert largest_excess(answers_of(params, kernels), params) > 8
