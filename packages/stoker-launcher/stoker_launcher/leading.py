"""Rank 0 of ranks that a launcher has started. It says what it begins, and what was computed; the others compare."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.config import Resolved
from stoker.config.exit_codes import EXIT_FAILED
from stoker.engine.cluster.gathering import Gathering
from stoker.engine.cluster.limits import LOADING_SILENCE_S, OPERATION_LIMIT_S, WAITING_LINE_S
from stoker.engine.cluster.secret import hash_of
from stoker.engine.loop.step_queue import cause_of
from stoker.engine.ranks.followers import Follower, in_step
from stoker.engine.ranks.group_runner import LeadingGroup
from stoker.engine.ranks.processes import RankProcesses
from stoker.engine.step import StepPlan, StepResult
from stoker.engine.transport.rank_messages import Alive, AllReturned, Computed, Failed, Left, Operation, RankMessage

from .launch import Launch, MeetingPoint
from .plan_hashes import operation_of

if TYPE_CHECKING:
    from stoker.engine.worker import WorkerCall, Workplace

_LEAVE_S = 1.0  # for the others to read the last message
logger = logging.getLogger(__name__)


class LaunchedProcesses(RankProcesses):
    """The other ranks, which the launcher has started."""

    default_silence_s = LOADING_SILENCE_S  # their scripts may keep the interpreter for a while
    ends_when_refused = True

    def __init__(
        self,
        resolved: Resolved,
        launch: Launch,
        report: Callable[[str], None] = lambda _: None,
        limit_s: float = OPERATION_LIMIT_S,
    ) -> None:
        """limit_s: for each of them to begin what this rank has begun. Raises NotLaunched, RankLost or OSError."""
        self._launch, self._limit_s = launch, limit_s
        self._num_begun, self._num_ended, self._operation = 0, 0, ""  # operations, and the newest one
        self._is_leaving = False
        self._begun_at = self._reported_at = time.monotonic()
        super().__init__(resolved, report=report)
        atexit.register(self.close)  # of a script that does not close its LLM

    def _start_all(self, report: Callable[[str], None]) -> None:
        from .stage_memory import stage_memory  # imports torch

        point = MeetingPoint(self._launch)
        memory = stage_memory(self._resolved, self._launch, point)
        self._memories = {} if memory is None else {0: memory}
        secret = secrets.token_hex(16)

        def publish(gathering: Gathering) -> None:
            place = {"address": gathering.address, "port": gathering.port, "secret": hash_of(secret)}
            point.publish("rank 0", {**place, "host": socket.gethostname(), "pid": os.getpid()})

        self._gather(self._launch.address, 0, hash_of(secret), publish, report)

    def begin(self, operation: Operation) -> None:
        """Announce an operation to the other ranks. Call it before an exchange. Raises RankLost."""
        self._begun_at = self._reported_at = time.monotonic()
        self._num_begun, self._operation = self._num_begun + 1, operation.name
        for each in self._followers:
            self._check_left(each)
        self.check()
        self.expect_returned()
        self.send(operation)

    def in_step(self, what: str) -> contextlib.AbstractContextManager[None]:
        """See `in_step` of ../ranks/followers.py."""
        return in_step(self, what)

    def reported(self, compute: Callable[[], StepResult]) -> StepResult:
        """What `compute` returns, for the others too. If only this step fails, it fails on all ranks."""
        try:
            result = compute()
        except Exception as error:
            if self._failure is None:
                self.end(Computed(None, cause_of(error)))
            raise
        self.end(Computed(result))
        return result

    def end(self, result: Computed | AllReturned) -> None:
        """Sends the result of the oldest operation; a rank that has it may leave. Raises RankLost."""
        self._num_ended += 1
        self.send(result)

    def lose(self, reason: str, exit_code: int = EXIT_FAILED) -> None:
        """See Followers.lose. The other ranks raise the same reason."""
        if self._failure is None and not self._is_closed:
            self._say(Failed(reason, exit_code))
        super().lose(reason, exit_code)

    def close(self) -> None:
        """Does not end them: each leaves when its script closes its LLM, or ends."""
        atexit.unregister(self.close)
        if self._is_closed:
            return
        self._is_leaving = True
        if self._failure is None:
            self._say(Left(self._num_begun))
            with self._changed:  # until what was sent has been read: closing a connection may drop it
                self._changed.wait_for(
                    lambda: self._failure or all(each.has_left for each in self._followers), _LEAVE_S
                )
        super().close()

    def cannot_start(self, error: BaseException) -> None:
        self.lose(f"rank 0 of the model could not start: {type(error).__name__}: {error}")
        super().cannot_start(error)

    def group(self, *, has_stages: bool) -> LaunchedLeadingGroup:
        return LaunchedLeadingGroup(self, has_stages=has_stages)

    def caller(self, workplace: Workplace) -> WorkerCall:
        from .calls import LaunchedCalls

        return LaunchedCalls(workplace, self).call

    def _say(self, message: RankMessage) -> None:
        """The last message. A rank that does not read is not waited for, also if another thread sends to it."""
        deadline = time.monotonic() + _LEAVE_S
        for each in self._followers:
            with contextlib.suppress(OSError):
                each.link.offer(message, max(0.0, deadline - time.monotonic()))

    def _alive(self) -> Alive:
        return Alive(self._num_begun)

    def _handle(self, follower: Follower, message: RankMessage) -> None:
        match message:
            case Alive(begun):
                follower.begun = begun
            case Left(begun):
                with self._changed:
                    follower.begun, follower.has_left = begun, True
                    self._changed.notify_all()
                self._check_left(follower)
            case Failed(text, exit_code):
                self.lose(text, exit_code)  # it names the rank
            case _:
                super()._handle(follower, message)

    def _check_left(self, follower: Follower) -> None:
        """A rank may leave when it has loaded, and an operation that has begun needs all ranks to its end."""
        is_needed = not follower.is_loaded or self._num_ended < self._num_begun
        if follower.has_left and is_needed and not self._is_leaving:
            self.lose(f"{follower} has left: its script has closed its LLM, or has ended")

    def _look(self, now: float) -> None:
        super()._look(now)
        late = [each for each in self._followers if each.begun < self._num_begun]
        if late and now - self._begun_at > self._limit_s:
            self.lose(f"{late[0]} has not begun {self._operation} within {self._limit_s:g} s: its script differs")
        elif late and now - self._reported_at > WAITING_LINE_S:
            self._reported_at = now
            logger.warning("waiting for %s to begin %s", ", ".join(map(str, late)), self._operation)


class LaunchedLeadingGroup(LeadingGroup):
    """The group of rank 0 where all ranks plan the steps: it says which it begins, and what was sampled."""

    def __init__(self, others: LaunchedProcesses, *, has_stages: bool = False) -> None:
        super().__init__(others, has_stages=has_stages)
        self._launched = others

    def announce(self, plan: StepPlan) -> None:
        self._launched.begin(operation_of(plan))

    def finish(self, compute: Callable[[], Any]) -> StepResult:
        return self._launched.reported(partial(super().finish, compute))
