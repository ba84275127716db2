"""The search itself: which beams and answers it keeps, and when it ends."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.beam_search import BeamSearch, BeamSearchParams, EarlyStopping
from stoker.engine.api import EngineOutput, EngineRequest, RequestInputs, SamplingParams, TokenLogprobs

PROMPT = [10, 11, 12]


def step(*tops: dict[int, float]) -> list[EngineOutput]:
    """What the engine says of each live beam: the best tokens, best first."""
    outputs = []
    for top in tops:
        entry = TokenLogprobs([next(iter(top)), *top], [next(iter(top.values())), *top.values()], 1)
        outputs.append(EngineOutput(request_id="", token_ids=[0], logprobs=[entry]))
    return outputs


def search(max_tokens: int, **params: Any) -> BeamSearch:
    request = EngineRequest(
        request_id="r", inputs=RequestInputs(PROMPT, SamplingParams(max_tokens=max_tokens, logprobs=0))
    )
    return BeamSearch(request, BeamSearchParams(width=2, **params), (2,), 100)


def found(search: BeamSearch) -> list[tuple[list[int], float]]:
    return [(answer.token_ids, sum(entry.logprobs[0] for entry in answer.logprobs or ())) for answer in search.best(2)]


def test_of_equal_log_probabilities_the_better_beam_is_first_and_then_the_better_token():
    tied = search(2)
    tied.advance(step({5: -1.0, 6: -1.0, 7: -1.0}))
    assert [request.inputs.prompt_token_ids for request in tied.requests()] == [[*PROMPT, 5], [*PROMPT, 6]]
    tied.advance(step({9: -1.0, 8: -1.0, 7: -3.0}, {8: -1.0, 9: -1.0, 7: -2.0}))
    assert found(tied) == [([5, 9], -2.0), ([5, 8], -2.0)]


def test_only_one_of_the_best_beams_becomes_an_answer_when_it_ends():
    """2 is the end token: in the first step only the third best ends, in the second the best."""
    ended = search(3, length_penalty=0.0, early_stopping="never")
    ended.advance(step({5: -1.0, 6: -2.0, 2: -3.0}))
    assert not ended.is_finished
    ended.advance(step({2: -0.5, 7: -1.0, 8: -9.0}, {2: -1.5, 7: -2.0, 8: -9.0}))
    assert [request.inputs.prompt_token_ids[3:] for request in ended.requests()] == [[5, 7], [6, 7]]
    ended.advance(step({8: -0.25, 9: -4.0, 2: -5.0}, {8: -0.25, 9: -4.0, 2: -5.0}))
    assert found(ended) == [([5, 2], -1.5), ([5, 7, 8], -2.25)]
    assert [answer.finish_reason for answer in ended.best(2)] == ["stop", "length"]


# The second step of a search for 3 tokens: the worse of two answers has -1.75, the best live beam -2, or -1.25.
WORSE = step({2: -0.5, 3: -0.75, 7: -1.0, 8: -2.0}, {7: -2.0, 8: -2.0, 2: -9.0, 3: -9.0})
BETTER = step({7: -0.25, 2: -0.5, 3: -9.0, 8: -9.0}, {7: -2.0, 8: -2.0, 2: -9.0, 3: -9.0})


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty", "second_step", "ends"),
    [
        (True, 1.0, WORSE, True),
        (True, 1.0, BETTER, True),
        (False, 1.0, WORSE, True),  # -2 / 2 is less than -1.75 / 2
        (False, 1.0, BETTER, False),
        (False, 0.0, BETTER, False),
        ("never", 1.0, WORSE, False),  # -2 / 3 is more than -1.75 / 2
        ("never", 0.0, WORSE, True),
    ],
)
def test_a_search_ends_when_its_answers_are_not_expected_to_become_better(
    early_stopping: EarlyStopping, length_penalty: float, second_step: list[EngineOutput], ends: bool
):
    params = BeamSearchParams(width=2, length_penalty=length_penalty, early_stopping=early_stopping)
    request = EngineRequest(request_id="r", inputs=RequestInputs(PROMPT, SamplingParams(max_tokens=3)))
    ending = BeamSearch(request, params, (2, 3), 100)
    first = {5: -1.0, 6: -1.25, 2: -9.0} if second_step is WORSE else {5: -1.0, 2: -1.75, 6: -2.0}
    ending.advance(step({**first, 3: -10.0}))
    assert not ending.is_finished
    ending.advance(second_step)
    assert len(ending.best(2)) == 2
    assert ending.is_finished == ends
