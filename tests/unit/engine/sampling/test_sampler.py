"""Samples follow the distribution that was asked for, and depend on nothing but seed, position and logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from tests.own_code import Ban, NoRepeats, cuts
from tests.slow_cases import slow

from stoker.engine.api import ProcessorCall, SamplingParams
from stoker.engine.kernels import KernelSet, select_kernels
from stoker.engine.plugins import PluginError
from stoker.engine.sampling.logits_processor import LogitsProcessor
from stoker.engine.sampling.sampler import FEW_BEST, LogprobsMode, Sampled, Sampler
from stoker.engine.sampling.sampling_table import SamplingTable

EOS = 2
TORCH = KernelSet()


@pytest.fixture(scope="module", params=["torch", "auto"])
def kernels(request: pytest.FixtureRequest) -> KernelSet:
    return select_kernels("cpu", torch.float32, 64, features=request.param)


def sample(
    logits: torch.Tensor,
    params: list[SamplingParams],
    *,
    seeds: list[int] | None = None,
    tokens: list[list[int]] | None = None,
    num_prompt_tokens: int = 1,
    kernels: KernelSet = TORCH,
    processors: Sequence[LogitsProcessor] = (),
    logprobs_mode: LogprobsMode = "raw_logprobs",
) -> Sampled:
    """One step of rows in slots of their own. Row r has the tokens tokens[r], a single 0 by default."""
    count, vocab_size = logits.shape
    tokens = tokens or [[0]] * count
    table = SamplingTable(count, vocab_size, (EOS,))
    token_table = np.zeros((count, max(map(len, tokens)) + 1), np.int32)
    for slot, (sampling, ids) in enumerate(zip(params, tokens, strict=True)):
        token_table[slot, : len(ids)] = ids
        table.admit(slot, sampling, seeds[slot] if seeds else slot, ids, num_prompt_tokens)
    lengths = np.array([len(ids) for ids in tokens], np.int64)
    sampler = Sampler(table, kernels, processors, logprobs_mode)
    return sampler.sample(logits, np.arange(count, dtype=np.int32), lengths, token_table)


def kept(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Probabilities [V] by the definition: sort, cut, renormalise. min_p first, then top-k, then top-p."""
    weights = (logits.double() / params.temperature).softmax(-1)
    weights[weights < params.min_p * weights.max()] = 0
    order = weights.argsort(descending=True, stable=True)
    if params.top_k > 0:
        weights[order[params.top_k :]] = 0
    weights /= weights.sum()
    before = weights[order].cumsum(-1) - weights[order]
    weights[order[before >= params.top_p]] = 0
    return weights / weights.sum()


@pytest.mark.parametrize(
    "params",
    [
        slow(SamplingParams()),
        slow(SamplingParams(temperature=0.5)),
        SamplingParams(temperature=1.7, min_p=0.1),
        slow(SamplingParams(top_k=5)),
        slow(SamplingParams(top_p=0.6)),
        slow(SamplingParams(top_p=0.9, min_p=0.05, temperature=1.3)),
        SamplingParams(top_k=9, top_p=0.8, min_p=0.02, temperature=0.9),
        SamplingParams(top_k=1),
    ],
    ids=lambda params: f"t{params.temperature} k{params.top_k} p{params.top_p} m{params.min_p}",
)
def test_samples_follow_the_distribution(params: SamplingParams, kernels: KernelSet):
    samples, vocab_size = 20_000, 40
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(1)) * 2
    found = np.bincount(
        sample(logits.expand(samples, -1).contiguous(), [params] * samples).token_ids, minlength=vocab_size
    )
    expected = kept(logits, params).numpy() * samples
    assert not found[expected == 0].any(), "a token that was cut off has been sampled"
    large = expected >= 5  # where the chi-square approximation holds
    chi_square = ((found - expected)[large] ** 2 / expected[large]).sum()
    degrees = max(int(large.sum()) - 1, 1)
    assert chi_square < degrees + 4 * (2 * degrees) ** 0.5 + 4


@pytest.mark.parametrize("vocab_size", [1000, 151_936])
@pytest.mark.quick_cases(2)
def test_what_is_sampled_from_a_large_vocabulary_is_never_cut_off(vocab_size: int, kernels: KernelSet):
    """More candidates than the first window holds, and tokens that tie, as bfloat16 logits do."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(6, vocab_size, generator=generator).bfloat16()
    params = [
        SamplingParams(top_p=0.9),
        SamplingParams(top_k=FEW_BEST + 50),
        SamplingParams(top_k=20, top_p=0.7),
        SamplingParams(top_p=0.5, temperature=0.05),
        SamplingParams(min_p=0.5),
        SamplingParams(top_k=5 * FEW_BEST, top_p=0.99),
    ]
    for seed in range(4):
        token_ids = sample(logits, params, seeds=[seed] * 6, kernels=kernels).token_ids
        for row, (token_id, sampling) in enumerate(zip(token_ids, params, strict=True)):
            assert kept(logits[row], sampling)[token_id] > 0, f"row {row}"


def test_a_sample_does_not_depend_on_the_batch(kernels: KernelSet):
    generator = torch.Generator().manual_seed(3)
    kinds = [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.9),
        SamplingParams(top_k=700, top_p=0.95),
        SamplingParams(min_p=0.01, presence_penalty=0.5),
        SamplingParams(logprobs=2, logit_bias={5: 3.0}),
        SamplingParams(top_p=0.3, temperature=2.0),
    ]
    logits = (torch.randn(len(kinds), 2048, generator=generator) * 3).bfloat16()
    tokens = [[1] * (2 + row) for row in range(len(kinds))]
    seeds = [7 * row + 1 for row in range(len(kinds))]
    together = sample(logits, kinds, seeds=seeds, tokens=tokens, kernels=kernels).token_ids.tolist()
    alone = [
        int(
            sample(
                logits[row : row + 1], [kinds[row]], seeds=[seeds[row]], tokens=[tokens[row]], kernels=kernels
            ).token_ids[0]
        )
        for row in range(len(kinds))
    ]
    order = [5, 2, 7, 0, 4, 1, 6, 3]
    shuffled = sample(
        logits[order],
        [kinds[i] for i in order],
        seeds=[seeds[i] for i in order],
        tokens=[tokens[i] for i in order],
        kernels=kernels,
    ).token_ids.tolist()
    assert together == alone
    assert shuffled == [together[i] for i in order]


def test_a_seed_gives_other_tokens_at_other_positions_and_other_seeds_too():
    logits = torch.zeros(300, 1000)
    by_position = sample(logits, [SamplingParams()] * 300, seeds=[5] * 300, tokens=[[0] * (n + 1) for n in range(300)])
    by_seed = sample(logits, [SamplingParams()] * 300, seeds=list(range(300)))
    # 300 uniform samples of 1000 ids: about 259 different ones are expected, with a deviation of 6
    assert 225 < len(set(by_position.token_ids.tolist())) < 290
    assert 225 < len(set(by_seed.token_ids.tolist())) < 290


def test_greedy_takes_the_first_of_equal_logits():
    logits = torch.zeros(2, 512)
    logits[0, [70, 300]] = 1.0
    assert sample(logits, [SamplingParams(temperature=0)] * 2).token_ids.tolist() == [70, 0]


def test_top_k_cuts_ties_by_token_id():
    logits = torch.zeros(50, 640)  # everything ties: top_k=2 leaves ids 0 and 1
    assert set(sample(logits, [SamplingParams(top_k=2)] * 50).token_ids.tolist()) == {0, 1}


def test_logit_bias_moves_and_bans_tokens():
    logits = torch.zeros(3, 100)
    params = [
        SamplingParams(temperature=0, logit_bias={7: 1.5, 8: 1.0}),
        SamplingParams(temperature=0, logit_bias={0: -100.0, 1: -100.0}),
        SamplingParams(temperature=0),
    ]
    assert sample(logits, params).token_ids.tolist() == [7, 2, 0]
    assert logits.abs().sum() == 0, "the logits given are not changed"


def test_only_allowed_tokens_are_sampled_and_a_bias_does_not_allow_others(kernels: KernelSet):
    logits = torch.zeros(5, 100)
    logits[:, 50] = 9.0
    params = [
        SamplingParams(temperature=0, allowed_token_ids=(8, 7, 8)),
        SamplingParams(temperature=0, allowed_token_ids=(7, 8), logit_bias={8: 1.0, 9: 100.0}),
        SamplingParams(allowed_token_ids=(3,)),
        SamplingParams(allowed_token_ids=(3,), top_k=4, top_p=0.9, repetition_penalty=2.0),
        SamplingParams(temperature=0),
    ]
    assert sample(logits, params, kernels=kernels).token_ids.tolist() == [7, 8, 3, 3, 50]
    assert logits.sum() == 5 * 9.0, "the logits given are not changed"


def test_a_bad_word_is_not_completed():
    logits = torch.zeros(6, 100)
    logits[:, 5], logits[:, 6] = 2.0, 1.0
    params = SamplingParams(temperature=0, bad_word_ids=((5,), (7, 8, 6)))
    tokens = [[0], [0, 7, 8], [0, 8, 8], [0, 1, 7, 8], [7, 8], [0, 8]]  # one prompt token
    found = sample(logits, [params] * 6, tokens=tokens).token_ids.tolist()
    assert found == [6, 0, 6, 0, 6, 6], "5 never, and 6 not after the generated 7, 8"
    allowed = replace(params, logit_bias={5: 100.0}, bad_word_ids=((5,),))
    assert sample(logits[:1], [allowed]).token_ids.tolist() == [6], "a bias does not allow it"


def test_min_tokens_holds_back_eos_and_stop_ids():
    logits = torch.zeros(4, 10)
    logits[:, EOS], logits[:, 5] = 2.0, 1.0
    held = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(5,))
    tokens = [[0], [0, 1], [0, 1, 1], [0]]  # one prompt token: 0, 1 and 2 generated ones
    params = [held, held, held, SamplingParams(temperature=0)]
    assert sample(logits, params, tokens=tokens).token_ids.tolist() == [0, 0, EOS, EOS]


@pytest.mark.parametrize("seed", range(3))
def test_penalties_equal_a_naive_loop(seed: int):
    generator = np.random.default_rng(seed)
    rows, vocab_size, prompt_len = 5, 60, 4
    logits = torch.from_numpy(generator.normal(size=(rows, vocab_size)).astype(np.float32))
    tokens = [generator.integers(0, vocab_size, 4 + 6 * row).tolist() for row in range(rows)]
    params = [
        SamplingParams(
            temperature=0,
            presence_penalty=float(generator.uniform(-2, 2)),
            frequency_penalty=float(generator.uniform(-2, 2)),
            repetition_penalty=float(generator.uniform(0.5, 2)),
        )
        for _ in range(rows)
    ]
    params[1] = SamplingParams(temperature=0)
    expected = logits.clone()
    for row, (ids, sampling) in enumerate(zip(tokens, params, strict=True)):
        for token_id in set(ids):
            value = expected[row, token_id]
            value = value / sampling.repetition_penalty if value > 0 else value * sampling.repetition_penalty
            count = ids[prompt_len:].count(token_id)
            expected[row, token_id] = (
                value - sampling.frequency_penalty * count - sampling.presence_penalty * (count > 0)
            )
    found = sample(logits, params, tokens=tokens, num_prompt_tokens=prompt_len).token_ids
    assert found.tolist() == expected.argmax(-1).tolist()


def test_penalty_counts_follow_the_sampled_tokens():
    table = SamplingTable(1, 4, ())
    table.admit(0, SamplingParams(temperature=0, frequency_penalty=1.0), 0, [3], 1)
    sampler, token_table = Sampler(table, TORCH), np.zeros((1, 8), np.int32)
    token_table[0, 0] = 3
    logits, sampled = torch.tensor([[0.0, 2.5, 2.0, 0.0]]), []
    for length in range(1, 6):
        found = sampler.sample(logits, np.array([0], np.int32), np.array([length]), token_table).token_ids
        token_table[0, length] = found[0]
        sampled.append(int(found[0]))
    assert sampled == [1, 2, 1, 2, 1]


def test_logprobs_are_those_of_the_raw_logits():
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(4))
    params = [
        SamplingParams(temperature=0.3, logprobs=3, logit_bias={9: 100.0}),
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, logprobs=0),
    ]
    sampled = sample(logits, params)
    expected = logits.log_softmax(-1)
    assert sorted(sampled.logprobs) == [0, 2]
    entry = sampled.logprobs[0]
    best = expected[0].topk(3)
    assert entry.token_ids == [9, *best.indices.tolist()]
    assert entry.logprobs == pytest.approx([expected[0, 9].item(), *best.values.tolist()], abs=1e-5)
    assert entry.rank == int((expected[0] > expected[0, 9]).sum()) + 1
    assert sampled.logprobs[2].token_ids == [int(logits[2].argmax())]
    assert sampled.logprobs[2].rank == 1


@pytest.mark.parametrize("params", [SamplingParams(top_k=3), SamplingParams(top_p=0.7, min_p=0.02, temperature=0.6)])
def test_processed_log_probabilities_are_those_that_tokens_are_sampled_by(params: SamplingParams):
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(6)) * 2
    asking = replace(params, logprobs=50, logit_bias={3: 5.0})
    entry = sample(logits, [asking], logprobs_mode="processed_logprobs").logprobs[0]
    logits[0, 3] += 5
    found = torch.zeros(50, dtype=torch.float64)
    found[entry.token_ids[1:]] = torch.tensor(entry.logprobs[1:], dtype=torch.float64).exp()
    torch.testing.assert_close(found, kept(logits[0], params), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mode", get_args(LogprobsMode))
def test_a_request_can_ask_for_processed_log_probabilities_whatever_the_deployment_shows(mode: LogprobsMode):
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(6)) * 2
    scaled = SamplingParams(temperature=0.5, logprobs=50, logit_bias={3: 5.0})
    greedy = replace(scaled, temperature=0.0)
    rows = [scaled, replace(scaled, processed_logprobs=True), greedy, replace(greedy, processed_logprobs=True)]
    found = sample(logits, rows, logprobs_mode=mode).logprobs
    others = [sample(logits[row : row + 1], [rows[row]], seeds=[row], logprobs_mode=mode).logprobs[0] for row in (0, 2)]
    assert [found[0], found[2]] == others
    biased = logits.double()
    biased[:, 3] += 5
    for row, temperature in ((1, 0.5), (3, 1.0)):
        expected = (biased[row] / temperature).log_softmax(-1)
        assert found[row].logprobs == pytest.approx(expected[found[row].token_ids].tolist(), abs=1e-5)


def test_logits_can_be_shown_as_they_are_and_as_they_are_sampled_from():
    logits = torch.tensor([[1.0, 3.0, 2.0, -4.0]])
    params = SamplingParams(temperature=0.5, top_k=2, logit_bias={0: 6.0}, logprobs=4)
    raw = sample(logits, [params], logprobs_mode="raw_logits").logprobs[0]
    processed = sample(logits, [params], logprobs_mode="processed_logits").logprobs[0]
    assert (raw.token_ids[1:], raw.logprobs[1:]) == ([1, 2, 0, 3], [3.0, 2.0, 1.0, -4.0])
    assert (processed.token_ids[1:3], processed.logprobs[1:3]) == ([0, 1], [14.0, 6.0])
    assert processed.logprobs[3:] == [-float("inf")] * 2


def test_a_greedy_row_shows_processed_logits_without_temperature():
    params = SamplingParams(temperature=0, logit_bias={0: 6.0}, logprobs=1)
    entry = sample(torch.tensor([[1.0, 3.0]]), [params], logprobs_mode="processed_logits").logprobs[0]
    assert (entry.token_ids, entry.logprobs) == ([0, 0], [7.0, 7.0])


def test_installed_processors_come_one_after_another_and_before_bias():
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]] * 2)
    params = [SamplingParams(temperature=0), SamplingParams(temperature=0, logit_bias={0: 100.0})]
    assert sample(logits, params, processors=[Ban([1])]).token_ids.tolist() == [2, 0]
    assert sample(logits, params, processors=[Ban([1]), Ban([2, 0], strength=50)]).token_ids.tolist() == [3, 0]
    assert logits.tolist() == [[1.0, 3.0, 2.0, 0.0]] * 2  # the model's own are not touched


def test_processors_see_prompt_and_answer_of_each_row():
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]] * 2)
    tokens = [[1, 2], [1, 1]]  # one prompt token, one of the answer
    params = [SamplingParams(temperature=0)] * 2
    sampled = sample(logits, params, tokens=tokens, processors=[NoRepeats()])
    assert sampled.token_ids.tolist() == [1, 2]


def test_a_named_processor_works_on_its_own_row_alone():
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]] * 3)
    named = ("tests.own_code:Only", (3,), {}), ("tests.own_code.negated", (), {})
    params = [SamplingParams(temperature=0, logits_processors=(ProcessorCall(*call),)) for call in named]
    assert sample(logits, [*params, SamplingParams(temperature=0)]).token_ids.tolist() == [3, 3, 1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("breaks", "ArithmeticError: no such logits"),
        ("cuts", "tests.own_code:cuts gave"),
        ("Ban", "cannot be made: TypeError"),
        ("not_numbers", "no token is left to sample"),
        ("forbids_all", "no token is left to sample"),
    ],
)
def test_a_named_processor_that_fails_is_an_error_of_its_row_only(name: str, said: str):
    logits = torch.tensor([[1.0, 3.0]] * 2)
    calls = (ProcessorCall(f"tests.own_code:{name}"),)
    sampled = sample(logits, [SamplingParams(temperature=0, logits_processors=calls), SamplingParams(temperature=0)])
    assert sampled.errors.keys() == {0}
    assert said in sampled.errors[0]
    assert sampled.token_ids[1] == 1


def test_an_installed_processor_that_changes_the_shape_is_refused():
    with pytest.raises(PluginError, match=r"tests.own_code:cuts gave .*\[1, 1\].*, not \(1, 2\)"):
        sample(torch.zeros(1, 2), [SamplingParams()], processors=[cuts])


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(), SamplingParams(top_p=0.5)])
@pytest.mark.parametrize("top_k", [0, 5, FEW_BEST + 1])
def test_a_row_of_nan_is_an_error_of_its_row_only(params: SamplingParams, top_k: int, kernels: KernelSet):
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
    asked = [replace(params, top_k=top_k, logprobs=1)] * 3
    expected = sample(logits, asked, kernels=kernels)
    logits[1] = torch.nan
    found = sample(logits, asked, kernels=kernels)
    assert not expected.errors
    assert list(found.errors) == [1]
    assert found.errors[1].startswith("no token can be sampled")
    assert found.token_ids[[0, 2]].tolist() == expected.token_ids[[0, 2]].tolist()
    assert 0 <= found.token_ids[1] < 1000
