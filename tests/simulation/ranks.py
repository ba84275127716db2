"""The ranks of a model besides the first, in memory: each applies the plans that it receives, as the real ones do.

The real GroupRunner, RankLink and rules of Followers are used. A rank may end, also in the middle of a step, or
stall; its tables must be those of rank 0.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

from stoker.engine.core import SchedulerSettings
from stoker.engine.ranks import followers
from stoker.engine.ranks.followers import Follower, Followers
from stoker.engine.runner.slot_table import SlotTable
from stoker.engine.sampling.sampling_table import SamplingTable
from stoker.engine.step import StepPlan, StepResult
from stoker.engine.step.plan import Int32
from stoker.engine.transport.rank_link import RankLink
from stoker.engine.transport.rank_messages import Alive, Loaded, Tokens

from .runner import FakeRunner
from .truth import VOCAB


class _Rank:
    """Another process of the model, seen from itself."""

    def __init__(self, end: socket.socket, settings: SchedulerSettings) -> None:
        self._end, self._link = end, RankLink(end)
        sampling = SamplingTable(settings.max_num_seqs, VOCAB, settings.eos_token_ids)
        self._table = SlotTable(
            settings.max_num_seqs, settings.max_model_len, settings.block_size, sampling, settings.num_groups
        )
        self._received: deque[object] = deque()
        self._sampled: Int32 = np.empty(0, np.int32)  # slots that get a token in the newest step
        self.is_stalled = False
        self._link.send(Loaded())

    def begin(self, runner: FakeRunner) -> None:
        """Take what was sampled in the step before, and the plan of the step that runs. runner: of rank 0."""
        message = self._next()
        if isinstance(message, Tokens):
            assert message.token_ids is not None
            self._table.append(self._sampled, message.token_ids)
            self._check(runner)
            message = self._next()
        assert isinstance(message, StepPlan)
        self._table.apply(message)
        self._sampled = message.slots[message.output_rows]

    def _next(self) -> object:
        while not self._received:
            self._receive()
        return self._received.popleft()

    def _receive(self) -> None:
        message = self._link.receive()
        if not isinstance(message, Alive):
            self._received.append(message)

    def _check(self, runner: FakeRunner) -> None:
        """Between two steps it knows what rank 0 does."""
        table = self._table
        for slot, state in runner.slots.items():
            assert table.token_ids[slot, : table.num_tokens[slot]].tolist() == state.token_ids, (
                "a rank has other tokens"
            )
            blocks = table.block_ids[:, slot, : table.num_blocks[slot]]
            assert blocks.tolist() == state.block_ids, "a rank has other blocks than rank 0"

    def live(self) -> None:
        """Take what has come, and say that this one lives. Not while it is stalled."""
        if not self.is_stalled:
            while _has_come(self._end):
                self._receive()
            self._link.send(Alive())

    def end(self) -> None:
        self._end.close()


def _has_come(end: socket.socket) -> bool:
    """Whether something can be read: a message, or the end of the other side."""
    try:
        end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


class Ranks(Followers):
    """The other ranks, seen from rank 0. What its thread does, `watch` does when it is called."""

    def __init__(self, num_others: int, settings: SchedulerSettings, now: Callable[[], float]) -> None:
        super().__init__(num_others + 1)
        self._now = now
        self.dies_in_step: int | None = None  # which one ends in the middle of the next step
        self.others: list[_Rank] = []
        for rank in range(1, num_others + 1):
            ours, theirs = socket.socketpair()
            self._followers.append(Follower(f"rank {rank}", RankLink(ours), None, now()))
            self.others.append(_Rank(theirs, settings))

    def wait_failure(self) -> None:
        self.watch()

    def watch(self) -> None:
        """Take what the ranks have sent, and look for those that are silent."""
        with patch.object(followers, "time", SimpleNamespace(monotonic=self._now)):
            for follower, rank in zip(self._followers, self.others, strict=True):
                if rank._end.fileno() >= 0 and self._failure is None:
                    rank.live()
                while self._failure is None and _has_come(follower.link._socket):
                    self._take(follower)
            if self._failure is None:
                self._look(self._now())

    def close(self) -> None:
        super().close()
        for rank in self.others:
            rank.end()


class RunnerOfRanks:
    """A part of the step happens in each rank."""

    def __init__(self, runner: FakeRunner, ranks: Ranks) -> None:
        self._runner, self._ranks = runner, ranks

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        return partial(self._execute, plan)

    def _execute(self, plan: StepPlan) -> StepResult:
        ranks = self._ranks
        for rank in ranks.others:
            rank.begin(self._runner)
        if ranks.dies_in_step is not None:
            ranks.others[ranks.dies_in_step % len(ranks.others)].end()
            raise RuntimeError("the exchange was closed")
        result = self._runner.execute(plan)
        ranks.hold(Tokens(result.token_ids))
        return result
