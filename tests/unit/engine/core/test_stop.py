import numpy as np

from stoker.engine.api import FinishReason, SamplingParams
from stoker.engine.core.stop import StopRule, WatchedIds

EOS = 2


def rule(num_prompt_tokens: int = 10, max_length: int = 100, **sampling: object) -> StopRule:
    return StopRule.of(SamplingParams(**sampling), num_prompt_tokens, (EOS, 3), max_length)  # type: ignore[arg-type]


def test_any_end_of_sequence_id_ends_it_without_a_stop_reason():
    assert rule().check(EOS, 11) == (FinishReason.STOP, None)
    assert rule().check(3, 11) == (FinishReason.STOP, None)
    assert rule().check(4, 11) == (None, None)


def test_a_named_stop_token_is_reported():
    assert rule(stop_token_ids=[7]).check(7, 11) == (FinishReason.STOP, 7)
    assert rule(stop_token_ids=[7]).check(EOS, 11) == (FinishReason.STOP, None)
    assert rule(stop_token_ids=[EOS]).check(EOS, 11) == (FinishReason.STOP, EOS)


def test_named_stop_tokens_apply_with_ignore_eos():
    assert rule(ignore_eos=True).check(EOS, 11) == (None, None)
    assert rule(ignore_eos=True, stop_token_ids=[7]).check(7, 11) == (FinishReason.STOP, 7)
    assert rule(ignore_eos=True, stop_token_ids=[EOS]).check(EOS, 11) == (FinishReason.STOP, EOS)


def test_max_tokens_counts_generated_tokens_only():
    assert rule(max_tokens=3).check(9, 12) == (None, None)
    assert rule(max_tokens=3).check(9, 13) == (FinishReason.LENGTH, None)


def test_without_max_tokens_the_context_is_the_limit():
    assert rule(max_tokens=None).max_length == 100
    assert rule(max_tokens=500).max_length == 100
    assert rule(max_tokens=None).check(9, 99) == (None, None)
    assert rule(max_tokens=None).check(9, 100) == (FinishReason.LENGTH, None)


def test_a_stop_token_in_the_last_position_is_a_stop():
    assert rule(max_tokens=1).check(EOS, 11) == (FinishReason.STOP, None)


def test_no_stop_token_ends_it_before_min_tokens():
    early = rule(min_tokens=3, stop_token_ids=[7])
    assert early.check(EOS, 12) == (None, None)
    assert early.check(7, 12) == (None, None)
    assert early.check(7, 13) == (FinishReason.STOP, 7)


def test_max_tokens_ends_a_sequence_below_min_tokens():
    assert rule(min_tokens=5, max_tokens=2).check(EOS, 12) == (FinishReason.LENGTH, None)


def test_ids_are_watched_as_long_as_a_sequence_has_them():
    watched = WatchedIds([2])
    watched.watch({5, 7})
    watched.watch({5})
    sampled = np.array([2, 5, 6, 7], np.int32)
    assert watched.seen_in(sampled).tolist() == [True, True, False, True]
    watched.forget({5, 7})
    assert watched.seen_in(sampled).tolist() == [True, True, False, False]
    watched.forget({5})
    assert watched.seen_in(sampled).tolist() == [True, False, False, False]


def test_many_watched_ids_are_found_like_a_few():
    watched = WatchedIds(range(0, 1000, 10))
    assert watched.seen_in(np.array([0, 5, 990, 991], np.int32)).tolist() == [True, False, True, False]
