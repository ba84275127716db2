"""The tokens of a step that each rank computes. What they compute: tests/models/test_shared_steps.py."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.runner.shared_step import pieces_of


@given(st.integers(2, 5), st.integers(0, 500))
def test_each_token_is_of_one_rank(num_ranks: int, num_tokens: int):
    shares = [pieces_of(rank, num_ranks, num_tokens) for rank in range(num_ranks)]
    assert sorted(token for share in shares for piece in share for token in piece) == list(range(num_tokens))
    assert all(first.stop <= second.start for first, second in shares)


def test_ranks_have_as_many_tokens_with_as_many_before_them():
    shares = [[token for piece in pieces_of(rank, 4, 800) for token in piece] for rank in range(4)]
    assert {len(share) for share in shares} == {200}
    assert len({sum(share) for share in shares}) == 1
