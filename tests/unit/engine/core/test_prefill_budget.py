from __future__ import annotations

import pytest

from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core import SchedulerSettings
from stoker.engine.core.prefill_budget import PrefillBudget
from stoker.engine.core.request import Request


def budget(num_decodes: int = 0, **changes: object) -> PrefillBudget:
    """Blocks of 4 tokens; 100 tokens in a step."""
    small = {"num_blocks": 99, "block_size": 4, "max_num_seqs": 9, "max_num_batched_tokens": 100, "max_model_len": 100}
    return PrefillBudget(SchedulerSettings(**{**small, **changes}), num_decodes)  # type: ignore[arg-type]


def request(num_tokens: int) -> Request:
    record = EngineRequest(request_id="r", inputs=RequestInputs([1] * num_tokens, SamplingParams()))
    return Request.of(
        record,
        arrival=0,
        seed=0,
        eos_token_ids=(),
        max_length=100,
        reads_cache=True,
    )


@pytest.mark.parametrize(
    ("start", "known", "left", "has_others", "end"),
    [
        (0, 100, 100, False, 100),  # all that is left
        (0, 99, 99, False, 99),  # not in whole blocks: it is the end of the prompt
        (0, 101, 100, False, 100),
        (0, 103, 99, False, 96),  # not the end of the prompt: the chunk ends with a block
        (5, 103, 90, False, 92),
        (0, 90, 3, False, 3),  # too little for a block
        (6, 90, 3, False, 8),
        (0, 50, 100, True, 50),  # half of the budget: not cut for others
        (0, 51, 100, True, 48),  # more: half of what is left, in whole blocks
        (0, 60, 20, True, 8),
        (0, 60, 1, True, 1),
        (0, 45, 20, True, 20),  # not cut for others, but there is no more
        (10, 60, 100, True, 60),
    ],
)
def test_where_a_chunk_ends(start: int, known: int, left: int, has_others: bool, end: int):
    made = budget()
    assert made.left == 100
    made.left = left
    assert made.chunk_end(start, known, has_others=has_others) == end


@pytest.mark.parametrize(("start", "known", "end"), [(0, 100, 100), (7, 107, 107), (7, 108, 7)])
def test_without_chunked_prefill_a_prompt_is_computed_whole_or_not_at_all(start: int, known: int, end: int):
    assert budget(enable_chunked_prefill=False).chunk_end(start, known, has_others=True) == end


def test_decode_rows_take_their_tokens_from_the_budget():
    assert budget(num_decodes=7).left == 93
    assert budget(num_decodes=7, max_prefill_share=0.5).left == 50


def test_a_prompt_is_long_above_the_threshold():
    made = budget(long_prefill_token_threshold=20)
    assert [made.is_long(request(num_tokens)) for num_tokens in (19, 20, 21)] == [False, False, True]


def test_prompts_computed_in_part_are_limited_and_long_ones_have_a_lower_limit():
    made = budget(max_num_partial_prefills=3, max_long_partial_prefills=1, long_prefill_token_threshold=20)
    allowed = [(made.allows_partial, made.allows_long_partial)]
    for num_tokens in (5, 30, 5):
        made.count_partial(request(num_tokens))
        allowed.append((made.allows_partial, made.allows_long_partial))
    assert allowed == [(True, True), (True, True), (True, False), (False, False)]


@pytest.mark.parametrize(
    ("num_stages", "num_decodes", "left"),
    [
        (1, 9, 91),
        (2, 0, 50),  # of two steps at a time, each has half
        (2, 9, 41),
        (3, 0, 34),
        (3, 34, 1),  # decode rows have taken the share: a prompt goes on nevertheless
        (3, 100, 0),  # within the limit of a step
    ],
)
def test_the_steps_of_a_pipeline_divide_the_tokens(num_stages: int, num_decodes: int, left: int):
    assert budget(num_decodes, num_stages=num_stages).left == left


def test_a_prompt_that_is_computed_whole_has_all_tokens_of_a_step():
    assert budget(9, num_stages=2, enable_chunked_prefill=False).left == 91
