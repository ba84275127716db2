"""GroupRunner and LeadingGroup: what is said to the others, in which order, and what a failure ends."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from stoker.engine.ranks.followers import Follower, Followers, RankLost
from stoker.engine.ranks.group_runner import GroupRunner, LeadingGroup
from stoker.engine.step import StepPlan, StepResult, plan_without_rows
from stoker.engine.transport.rank_link import RankLink
from stoker.engine.transport.rank_messages import Finish, RankMessage


class Others(Followers):
    """One other rank, whose end is here. Nothing watches it."""

    def __init__(self) -> None:
        super().__init__(2)
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._followers.append(Follower("rank 1", RankLink(ours), None))
        self.end = RankLink(theirs)

    def wait_failure(self) -> None:
        pass


class Launched:
    """A runner that says what the other rank has received when a step begins here, and when it ends."""

    def __init__(self, end: RankLink) -> None:
        self._end = end
        self.seen: list[list[type[RankMessage]]] = []
        self.fails = False

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        self.seen.append(self._received())
        return self._finish

    def _finish(self) -> StepResult:
        self.seen.append(self._received())
        if self.fails:
            raise ValueError("no memory")
        return StepResult(np.array([5], np.int32))

    def _received(self) -> list[type[RankMessage]]:
        found = []
        while True:
            try:
                found.append(type(self._end.receive()))
            except BlockingIOError:
                return found


@pytest.fixture
def others() -> Iterator[Others]:
    made = Others()
    yield made
    made.close()
    made.end.close()


@pytest.mark.parametrize(
    ("how", "begins", "ends"),
    [({}, [StepPlan], []), ({"has_stages": True}, [StepPlan], [Finish]), ({"announces": False}, [], [])],
)
def test_the_others_hear_of_a_step_before_it_begins_here_and_stages_before_it_ends(
    how: dict[str, bool], begins: list[type], ends: list[type], others: Others
):
    runner = Launched(others.end)
    finish = GroupRunner(runner, LeadingGroup(others, **how)).launch(plan_without_rows())
    assert runner.seen == [begins]
    assert finish().token_ids.tolist() == [5]
    assert runner.seen == [begins, ends]


def test_no_step_follows_one_that_ended_in_the_middle(others: Others):
    runner = Launched(others.end)
    together = GroupRunner(runner, LeadingGroup(others))
    runner.fails = True
    with pytest.raises(ValueError, match="no memory"):
        together.execute(plan_without_rows())
    runner.fails = False
    with pytest.raises(RankLost, match="a step ended in the middle: ValueError: no memory"):
        together.launch(plan_without_rows())
    assert len(runner.seen) == 2
