"""Beam search in the real engine finds what transformers' `generate(num_beams=...)` finds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
from tests.slow_cases import slow
from transformers import PreTrainedModel

from stoker.beam_search import BeamSearch, BeamSearchParams, EarlyStopping
from stoker.engine.api import EngineOutput, EngineRequest, FinishReason, RequestInputs, SamplingParams

from .checkpoints import VOCAB
from .conftest import Saved
from .engine import Engine, resolved
from .test_generation import make_prompts

CONTEXT = 64
# Of 97 tokens these many end an answer, so that answers of all lengths are found.
ENDS = {"no end": (), "one end": (11,), "many ends": tuple(range(0, VOCAB, 7))}


@pytest.fixture(scope="module")
def checkpoint(saved: Callable[[str], Saved]) -> Saved:
    return saved("qwen3")


@pytest.fixture
def engine(checkpoint: Saved, tmp_path: Path) -> Engine:
    return Engine(resolved(checkpoint[1], tmp_path))


def search(
    engine: Engine,
    prompts: list[list[int]],
    params: BeamSearchParams,
    sampling: SamplingParams,
    eos_token_ids: tuple[int, ...],
) -> list[BeamSearch]:
    """All prompts together, one request per beam and step."""
    searches = [
        BeamSearch(
            EngineRequest(request_id=str(index), inputs=RequestInputs(prompt, sampling)),
            params,
            eos_token_ids,
            CONTEXT,
        )
        for index, prompt in enumerate(prompts)
    ]
    while live := [each for each in searches if not each.is_finished]:
        requests = [request for each in live for request in each.requests()]
        done = engine.run(requests)
        outputs = iter([done[request.request_id] for request in requests])
        for each in live:
            each.advance(list(islice(outputs, each.num_live)))
    return searches


def reference(
    model: PreTrainedModel,
    prompt: list[int],
    params: BeamSearchParams,
    sampling: SamplingParams,
    eos_token_ids: tuple[int, ...],
) -> list[list[int]]:
    """The answers of transformers, best first, up to and with the token that ends them."""
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=sampling.max_tokens,
        min_new_tokens=sampling.min_tokens or None,
        num_beams=params.width,
        num_return_sequences=params.width,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        eos_token_id=list(eos_token_ids) or -1,
        pad_token_id=0,
        do_sample=False,
    )
    answers = []
    for row in found[:, len(prompt) :].tolist():
        end = next((index + 1 for index, token_id in enumerate(row) if token_id in eos_token_ids), len(row))
        answers.append(row[:end])
    return answers


def token_ids(outputs: list[EngineOutput]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("ends", ["many ends", slow("no end"), slow("one end")])
@pytest.mark.parametrize(
    ("early_stopping", "length_penalty"),
    [
        (False, 2.5),
        *(slow(False, penalty) for penalty in (1.0, 0.0, -1.0)),
        slow(True, 1.0),
        *(slow("never", penalty) for penalty in (2.5, -1.0)),
    ],
)
def test_answers_equal_those_of_transformers(
    ends: str, early_stopping: EarlyStopping, length_penalty: float, checkpoint: Saved, engine: Engine
):
    sampling = SamplingParams(max_tokens=12)
    prompts = make_prompts(3)
    for width in (2, 5):
        params = BeamSearchParams(width=width, length_penalty=length_penalty, early_stopping=early_stopping)
        for prompt, found in zip(prompts, search(engine, prompts, params, sampling, ENDS[ends]), strict=True):
            expected = reference(checkpoint[0], prompt, params, sampling, ENDS[ends])
            assert token_ids(found.best(width)) == expected, f"{width} beams, prompt {prompt}"


def test_an_answer_does_not_end_before_min_tokens_and_a_named_stop_token_is_reported(checkpoint: Saved, engine: Engine):
    sampling, ends = SamplingParams(max_tokens=12, min_tokens=4), ENDS["many ends"]
    params = BeamSearchParams(width=3)
    prompt = make_prompts(1)[0]
    (found,) = search(engine, [prompt], params, sampling, ends)
    assert token_ids(found.best(3)) == reference(checkpoint[0], prompt, params, sampling, ends)
    for output in found.best(3):
        reason = FinishReason.STOP if output.token_ids[-1] in ends else FinishReason.LENGTH
        assert (output.finish_reason, output.stop_reason) == (reason, None)
    named = SamplingParams(max_tokens=12, min_tokens=4, stop_token_ids=ends)
    (again,) = search(engine, [prompt], params, named, ())
    assert token_ids(again.best(3)) == token_ids(found.best(3))
    for output in again.best(3):
        assert output.stop_reason == (output.token_ids[-1] if output.finish_reason is FinishReason.STOP else None)
    ignored = SamplingParams(max_tokens=5, ignore_eos=True)
    (longer,) = search(engine, [prompt], params, ignored, ends)
    assert [(len(output.token_ids), output.finish_reason) for output in longer.best(3)] == [(5, "length")] * 3


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.4])
def test_a_search_that_keeps_everything_finds_the_best_of_all_answers(
    temperature: float, checkpoint: Saved, engine: Engine
):
    """Two tokens, as many beams as tokens: all 97 x 97 answers, ranked by their exact log-probabilities."""
    prompt, bias = [5, 6, 7], {5: 3.0, 50: -2.0}
    sampling = SamplingParams(max_tokens=2, temperature=temperature, logit_bias=bias, logprobs=2)
    (found,) = search(engine, [prompt], BeamSearchParams(width=VOCAB, length_penalty=0.0), sampling, ())

    def logprobs(token_ids: list[list[int]]) -> torch.Tensor:
        with torch.no_grad():
            logits = checkpoint[0](torch.tensor(token_ids)).logits[:, -1].double()
        for token_id, value in bias.items():
            logits[:, token_id] += value
        return (logits / (temperature or 1.0)).log_softmax(-1)

    first = logprobs([prompt])[0]
    both = first[:, None] + logprobs([[*prompt, token_id] for token_id in range(VOCAB)])
    best = both.flatten().topk(4)
    answers = found.best(4)
    assert token_ids(answers) == [[*divmod(index, VOCAB)] for index in best.indices.tolist()]
    for answer, expected in zip(answers, best.values.tolist(), strict=True):
        entries = answer.logprobs or []
        assert [entry.token_ids[0] for entry in entries] == answer.token_ids
        assert sum(entry.logprobs[0] for entry in entries) == pytest.approx(expected, abs=1e-4)
        assert [len(entry.token_ids) for entry in entries] == [3, 3]
        assert entries[0].token_ids[1:] == first.topk(2).indices.tolist()
        assert entries[0].rank == int((first > first[answer.token_ids[0]]).sum()) + 1


def test_all_beams_advance_in_one_step_and_compute_their_last_block_only(checkpoint: Saved, tmp_path: Path):
    engine = Engine(resolved(checkpoint[1], tmp_path, scheduler={"max_num_batched_tokens": 64}))
    before = engine.scheduler.stats()
    prompts = [list(range(3, 20)), list(range(30, 50))]
    search(engine, prompts, BeamSearchParams(width=4), SamplingParams(max_tokens=9), ())
    after = engine.scheduler.stats()
    assert after.num_steps - before.num_steps == 9
    looked_up, found = after.prefix_queries - before.prefix_queries, after.prefix_hits - before.prefix_hits
    num_requests = 2 * (1 + 4 * 8)
    assert looked_up - found <= (17 + 20) + num_requests * 8  # a block has 8 tokens
    assert after.num_free_blocks == after.num_blocks


def test_an_answer_ends_at_the_end_of_the_context(engine: Engine):
    prompt = list(range(CONTEXT - 3))
    (found,) = search(engine, [prompt], BeamSearchParams(width=2), SamplingParams(max_tokens=50), ())
    assert [(len(output.token_ids), output.finish_reason) for output in found.best(2)] == [(3, "length")] * 2


def test_fewer_answers_are_found_where_no_others_are_allowed(engine: Engine):
    sampling = SamplingParams(max_tokens=3, allowed_token_ids=(5,))
    (found,) = search(engine, [[1, 2]], BeamSearchParams(width=2), sampling, ())
    assert token_ids(found.best(2)) == [[5, 5, 5]]
