import re

import pytest

from stoker.engine.api import EngineRequest, InvalidRequest, RequestInputs, SamplingParams
from stoker.engine.core.settings import SchedulerSettings, check_request


def settings(**changes: object) -> SchedulerSettings:
    values: dict[str, object] = {
        "num_blocks": 10,
        "block_size": 4,
        "max_num_seqs": 2,
        "max_num_batched_tokens": 16,
        "max_model_len": 32,
    }
    return SchedulerSettings(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_blocks": 0}, "num_blocks is 0; it must be at least 1"),
        ({"max_model_len": 1}, "max_model_len is 1; a prompt and one token need 2"),
        ({"max_queued_requests": -1}, "max_queued_requests is -1; it must not be negative"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy is 'lifo'; it must be one of fcfs, priority"),
        (
            {"max_num_seqs": 17},
            "max_num_batched_tokens (16) is less than max_num_seqs (17): "
            "a step could not hold one token of every running sequence",
        ),
        (
            {"enable_chunked_prefill": False},
            "without chunked prefill max_num_batched_tokens (16) must be at least max_model_len (32): "
            "a long prompt could never run",
        ),
    ],
)
def test_settings_under_which_a_request_could_never_run_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        settings(**changes)


def test_the_longest_sequence_fits_context_and_cache_except_its_last_token():
    assert settings().max_sequence_len == 32
    assert settings(num_blocks=5).max_sequence_len == 21


@pytest.mark.parametrize(
    ("prompt", "sampling", "param", "code"),
    [
        ([], {}, "prompt", "empty_array"),
        ([1, -1], {}, "prompt", "invalid_token_id"),
        ([2**31], {}, "prompt", "invalid_token_id"),
        (["a"], {}, "prompt", "invalid_token_id"),
        ([1], {"max_tokens": -1}, "max_tokens", "integer_below_min_value"),
        ([1], {"n": 2}, "n", "invalid_value"),
        ([1] * 32, {}, "prompt", "context_length_exceeded"),
        ([1] * 1_000, {}, "prompt", "context_length_exceeded"),
    ],
)
def test_a_request_that_can_never_be_served_is_invalid(prompt, sampling, param, code):
    request = EngineRequest(request_id="a", inputs=RequestInputs(prompt, SamplingParams(**sampling)))
    with pytest.raises(InvalidRequest) as caught:
        check_request(request, settings())
    assert (caught.value.param, caught.value.code) == (param, code)


def test_a_prompt_with_space_for_one_more_token_is_valid():
    request = EngineRequest(request_id="a", inputs=RequestInputs([1] * 31, SamplingParams(max_tokens=1_000)))
    check_request(request, settings())
    with pytest.raises(InvalidRequest, match="the KV cache holds 28"):
        check_request(request, settings(num_blocks=7))
    check_request(request, settings(num_blocks=8))
