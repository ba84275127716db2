"""What rank 0 sends the others, and in which order."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

from stoker.engine.cluster.limits import ALIVE_S
from stoker.engine.loop.step_queue import FailedAfterExchange, RunnerUnusable
from stoker.engine.ranks.followers import Follower, Followers
from stoker.engine.ranks.following_sampler import FollowingSampler, SamplingFailed
from stoker.engine.ranks.leading_sampler import LeadingSampler
from stoker.engine.runner.sample_head import LOGIT_ROWS
from stoker.engine.sampling.sampler import Sampled
from stoker.engine.step import StepPlan
from stoker.engine.step.plan import Int32, plan_without_rows
from stoker.engine.transport.messages import FreeMemory
from stoker.engine.transport.rank_link import RankLink
from stoker.engine.transport.rank_messages import Alive, Call, Finish, RankMessage, Tokens
from stoker.frames import framed


class Others(Followers):
    """Whose ends are here."""

    def __init__(self, num_others: int, num_in_stage: int) -> None:
        super().__init__(num_in_stage)
        self.ends: list[RankLink] = []
        for rank in range(1, num_others + 1):
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)  # what has not been sent raises BlockingIOError
            self._followers.append(Follower(f"rank {rank}", RankLink(ours), None))
            self.ends.append(RankLink(theirs))


@pytest.fixture
def connect() -> Iterator[Callable[[int, int], Others]]:
    made: list[Others] = []

    def connected(num_others: int, num_in_stage: int) -> Others:
        made.append(Others(num_others, num_in_stage))
        return made[-1]

    yield connected
    for others in made:
        others.close()
        for end in others.ends:
            end.close()


def tokens(*ids: int) -> Tokens:
    return Tokens(np.array(ids, np.int32))


def received(end: RankLink) -> list[RankMessage]:
    """All that has come."""
    found = []
    while True:
        try:
            found.append(end.receive())
        except BlockingIOError:
            return found


def kinds(end: RankLink) -> list[type]:
    return [type(message) for message in received(end)]


@pytest.mark.parametrize("between_s", [0.25, 0.3, 0.45, 0.49, 0.6])
def test_ranks_of_other_nodes_hear_of_this_one_however_often_it_looks(
    connect: Callable[[int, int], Others], between_s: float
):
    """What a rank sends wakes the thread that looks: a look after 0.49 s mostly found that it was not time."""
    others = connect(1, 2)
    others._followers[0].heard_at = 0.0
    heard = [0.0]
    for number in range(1, 101):
        now = 100 + number * between_s
        others._followers[0].heard_at = now
        others._look(now)
        if kinds(others.ends[0]) == [Alive]:
            heard.append(now)
    assert max(later - earlier for earlier, later in itertools.pairwise(heard[1:])) < ALIVE_S + between_s


def test_tokens_come_with_the_next_message_and_before_it(connect: Callable[[int, int], Others]):
    others = connect(2, 3)
    others.hold(tokens(5, 7))
    assert [received(end) for end in others.ends] == [[], []]
    others.send(plan_without_rows())
    for end in others.ends:
        sampled, plan = received(end)
        assert isinstance(sampled, Tokens)
        assert sampled.token_ids is not None
        assert sampled.token_ids.tolist() == [5, 7]
        assert isinstance(plan, StepPlan)
    others.send(plan_without_rows())
    assert [kinds(end) for end in others.ends] == [[StepPlan]] * 2


@pytest.mark.parametrize("message", [Call("name", b""), FreeMemory()])
def test_what_comes_between_two_steps_comes_after_the_tokens(
    message: RankMessage, connect: Callable[[int, int], Others]
):
    others = connect(1, 2)
    others.hold(tokens(1))
    others.send(message)
    others.send(plan_without_rows())
    assert kinds(others.ends[0]) == [Tokens, type(message), StepPlan]


def test_tokens_of_steps_in_flight_are_for_the_first_stage_alone(connect: Callable[[int, int], Others]):
    others = connect(3, 2)
    others.send(plan_without_rows())
    others.send(plan_without_rows())
    for _ in range(2):
        others.send(Finish())
        others.hold(tokens(1))
    others.send(plan_without_rows())
    assert kinds(others.ends[0]) == [StepPlan, StepPlan, Finish, Tokens, Finish, Tokens, StepPlan]
    assert [kinds(end) for end in others.ends[1:]] == [[StepPlan] * 3] * 2


def test_a_stage_of_one_rank_has_no_other_that_samples(connect: Callable[[int, int], Others]):
    others = connect(1, 1)
    others.send(plan_without_rows())
    others.send(Finish())
    others.hold(tokens(1))
    others.send(plan_without_rows())
    assert kinds(others.ends[0]) == [StepPlan, StepPlan]


def sample(sampler: LeadingSampler | FollowingSampler, num_rows: int) -> Int32:
    rows = np.arange(num_rows)
    ids: Int32 = sampler.sample(torch.zeros(num_rows, 8), rows, rows, rows.astype(np.int32)).token_ids
    return ids


def leading(others: Followers, choose: Callable[..., Sampled]) -> LeadingSampler:
    sampler: Any = SimpleNamespace(sample=choose, prompt_logprobs=None)
    return LeadingSampler(sampler, others)


def test_a_step_of_more_rows_than_are_sampled_at_a_time_goes_on_in_all_ranks(connect: Callable[[int, int], Others]):
    """Logits of the next rows are exchanged: ranks that waited for the tokens of the first rows would not come."""
    others = connect(1, 2)
    sampler = leading(others, lambda logits, *_: Sampled(np.full(len(logits), 3, np.int32), {}))
    following = FollowingSampler(others.ends[0])
    assert sample(sampler, LOGIT_ROWS).tolist() == sample(following, LOGIT_ROWS).tolist() == [3] * LOGIT_ROWS
    assert sample(sampler, 2).tolist() == [3, 3]
    with pytest.raises(BlockingIOError):
        sample(following, 2)
    others.send(plan_without_rows())
    assert sample(following, 2).tolist() == [3, 3]
    assert kinds(others.ends[0]) == [StepPlan]


def test_sampling_that_fails_ends_the_step_before_the_next_one(connect: Callable[[int, int], Others]):
    others = connect(1, 2)

    def fails(*_: object) -> Sampled:
        raise ValueError("no")

    with pytest.raises(FailedAfterExchange, match="no"):
        sample(leading(others, fails), 2)
    others.send(plan_without_rows())
    with pytest.raises(SamplingFailed):
        sample(FollowingSampler(others.ends[0]), 2)
    assert kinds(others.ends[0]) == [StepPlan]


def test_a_rank_that_sends_what_is_no_message_is_lost(connect: Callable[[int, int], Others]):
    """The thread that reads from the ranks ended, and none of them was watched any more."""
    others = connect(1, 2)
    others.ends[0]._socket.sendall(framed(msgpack.packb(["xyz"])))
    (follower,) = others._followers
    for _ in range(2):  # the length, and the message
        others._take(follower)
    with pytest.raises(RunnerUnusable, match="rank 1 sent what is no message: unknown tag 'xyz'"):
        others.check()
