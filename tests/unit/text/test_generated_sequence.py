from __future__ import annotations

import pytest

from stoker.engine.api import EngineOutput, EngineRequest, FinishReason, RequestInputs, SamplingParams, TokenLogprobs
from stoker.text.generated_sequence import Delta, GeneratedSequence, GenerationFailed, join
from stoker.text.tokenizer import Tokenizer


def sequence(tokenizer: Tokenizer | None, **sampling: object) -> GeneratedSequence:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    request = EngineRequest(request_id="r", inputs=RequestInputs([3, 4], params))
    return GeneratedSequence(7, request, tokenizer)


def output(token_ids: list[int], **more: object) -> EngineOutput:
    return EngineOutput(request_id="r", token_ids=token_ids, **more)  # type: ignore[arg-type]


def logprobs(token_ids: list[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs([token_id], [-0.5 * token_id], 1) for token_id in token_ids]


def test_deltas_are_the_text_of_the_tokens_and_join_to_the_whole(tokenizer: Tokenizer):
    token_ids = tokenizer.encode("Hello, world! 日本語")
    cut = len(token_ids) // 2
    generated = sequence(tokenizer)
    first = generated.take(output(token_ids[:cut], num_cached_tokens=16, num_newly_cached_tokens=32))
    second = generated.take(output(token_ids[cut:], finish_reason=FinishReason.LENGTH))
    assert first.finish_reason is None
    assert join([first, second]) == Delta(7, "Hello, world! 日本語", token_ids, finish_reason="length")
    assert (generated.num_generated, generated.num_cached, generated.num_newly_cached) == (len(token_ids), 16, 32)
    assert generated.finish_reason == "length"


def test_a_stop_string_cuts_text_tokens_and_logprobs_at_the_same_token(tokenizer: Tokenizer):
    """The engine sent three tokens more, and a finish reason of its own: both are dropped."""
    token_ids = tokenizer.encode("if x: STOP")
    more = tokenizer.encode(" and")
    generated = sequence(tokenizer, stop=("STOP",))
    delta = generated.take(
        output(token_ids + more, logprobs=logprobs(token_ids + more), finish_reason=FinishReason.LENGTH)
    )
    assert delta == Delta(7, "if x: ", token_ids, logprobs(token_ids), finish_reason="stop", stop_reason="STOP")
    assert generated.num_generated == len(token_ids)


def test_text_that_may_become_a_stop_string_comes_with_the_last_delta(tokenizer: Tokenizer):
    token_ids = tokenizer.encode("x STO")
    generated = sequence(tokenizer, stop=("STOP",))
    first = generated.take(output(token_ids))
    assert first.text == "x "
    last = generated.take(output([], finish_reason=FinishReason.LENGTH))
    assert (last.text, last.finish_reason) == ("STO", "length")


def test_without_a_tokenizer_or_detokenize_there_are_token_ids_only(tokenizer: Tokenizer):
    for generated in (sequence(None), sequence(tokenizer, detokenize=False)):
        assert not generated.has_text
        delta = generated.take(output([5, 6], finish_reason=FinishReason.STOP, stop_reason=6))
        assert delta == Delta(7, "", [5, 6], finish_reason="stop", stop_reason=6)


def test_logprobs_of_all_deltas_are_joined_and_the_deltas_are_unchanged():
    generated = sequence(None, logprobs=0, prompt_logprobs=0)
    first = generated.take(output([5], logprobs=logprobs([5]), prompt_logprobs=[None, *logprobs([4])]))
    second = generated.take(output([6], logprobs=logprobs([6]), finish_reason=FinishReason.LENGTH))
    whole = join([first, second])
    assert (whole.logprobs, whole.prompt_logprobs) == (logprobs([5, 6]), [None, *logprobs([4])])
    assert (first.token_ids, first.logprobs) == ([5], logprobs([5]))


@pytest.mark.parametrize(
    ("reason", "error", "message"),
    [
        (FinishReason.ERROR, "out of memory", "out of memory"),
        (FinishReason.ABORT, None, "the engine ended this request: abort"),
    ],
)
def test_a_sequence_that_the_engine_ended_early_raises(reason: FinishReason, error: str | None, message: str):
    with pytest.raises(GenerationFailed, match=message) as caught:
        sequence(None).take(output([], finish_reason=reason, error=error))
    assert (caught.value.reason, caught.value.message) == (reason, error)
