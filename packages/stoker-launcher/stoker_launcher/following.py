"""Another rank than 0 that a launcher has started: plans the steps, compares them with rank 0's, and computes its
part."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from queue import Empty
from typing import Any

from stoker.config import Resolved
from stoker.config.exit_codes import EXIT_FAILED
from stoker.engine.cluster.joining import JoinedLink
from stoker.engine.cluster.limits import LOADING_SILENCE_S, OPERATION_LIMIT_S, WAITING_LINE_S, silence_of
from stoker.engine.collectives import Ranks
from stoker.engine.collectives.connect import ranks_in, stage_link
from stoker.engine.collectives.stages import StageLink
from stoker.engine.kernels import KernelSet
from stoker.engine.loop.step_queue import FailedOnRank0
from stoker.engine.ranks.followers import RankLost
from stoker.engine.ranks.following_sampler import SamplingFailed
from stoker.engine.ranks.place import joined
from stoker.engine.runner.loaded_model import RanksOf
from stoker.engine.step import StepPlan, StepResult
from stoker.engine.transport.rank_messages import Alive, Computed, Failed, Finish, Left, Operation, RankMessage

from .launch import Launch, MeetingPoint
from .plan_hashes import difference, operation_of
from .stage_memory import stage_memory

_POLL_S = 1.0
_LEAVE_S = 1.0  # for rank 0 to read the last message
logger = logging.getLogger(__name__)


class LaunchedLink(JoinedLink):
    """The link to rank 0 of a process that runs somebody else's script. If rank 0 ends, calls raise RankLost and the
    process continues."""

    def __init__(
        self, end: socket.socket, rank: int, exit_process: Callable[[int], None], silence_s: float, rank_0: str
    ) -> None:
        """silence_s: as JoinedLink. rank_0: its name."""
        super().__init__(end, rank, exit_process, silence_s)
        self.rank_0 = rank_0
        self.failure: RankLost | None = None
        self.begun = 0  # operations
        self.on_failure: Callable[[], None] = lambda: None
        self._has_left = False

    def next(self, timeout_s: float) -> RankMessage:
        """Raises Empty, or RankLost."""
        message = self._messages.get(timeout=timeout_s)
        self.check()
        return message

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def fail(self, reason: str, exit_code: int = EXIT_FAILED) -> None:
        """Record why no step can follow. The first reason counts."""
        if self.failure is None:
            self.failure = RankLost(reason, exit_code)
            self.on_failure()
            self._messages.put(Left(0))  # ends the waiting of `next`

    def _watch(self) -> None:
        super()._watch()
        self.shut_down()  # another thread may send
        self.close()

    def _alive(self) -> Alive:
        return Alive(self.begun)

    def _deliver(self, message: RankMessage) -> None:
        match message:
            case Failed(text, exit_code):
                self.fail(text, exit_code)
            case Left():
                self._has_left = True
                self._messages.put(message)
                self.offer(Left(self.begun), _LEAVE_S)
            case _:
                self._messages.put(message)

    def _end(self, why: str) -> None:
        if not self._has_left:
            self.fail(f"{self.rank_0} {why}")


class LaunchedRank:
    """This rank among the others."""

    def __init__(self, resolved: Resolved, launch: Launch, limit_s: float = OPERATION_LIMIT_S) -> None:
        """Connects to rank 0. resolved: as decided here.

        limit_s: for rank 0 to begin what this rank has begun, from the second operation on: before the first one it
            may load. Raises NotLaunched, JoinRefused or OSError.
        """
        self._rank, self._limit_s = launch.rank, limit_s
        self._name = f"rank {launch.rank} of the model ({socket.gethostname()}, process {os.getpid()})"
        point = MeetingPoint(launch)
        memory = stage_memory(resolved, launch, point)
        rank_0 = point.read("rank 0")
        where = {"master_addr": rank_0["address"], "master_port": rank_0["port"]}
        there = resolved.model_copy(update={"parallel": resolved.parallel.model_copy(update=where)})
        name = f"rank 0 of the model ({rank_0['host']}, process {rank_0['pid']})"
        link_of = partial(LaunchedLink, silence_s=silence_of(resolved.parallel, LOADING_SILENCE_S), rank_0=name)
        self._place = joined(there, launch.rank, memory, rank_0["secret"], link_of)
        if memory is not None:
            os.close(memory.fd)
        assert isinstance(self._place.link, LaunchedLink)
        self._link = self._place.link
        self._link.on_failure = self._end_waiting
        self._ranks: Ranks | None = None
        self._stage_link: StageLink | None = None
        self._is_closed = False
        atexit.register(self.close)  # of a script that does not close its LLM

    @property
    def resolved(self) -> Resolved:
        """The values of rank 0, with the files of this machine."""
        return self._place.resolved

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def stage(self) -> int:
        return self._place.stage

    @property
    def ranks_of(self) -> RanksOf | None:
        """Makes the ranks of its stage; None if it is the only one."""
        return self._join if self._place.resolved.topology.group_size > 1 else None

    def _join(self, kernels: KernelSet) -> Ranks:
        place, parallel = self._place, self._place.resolved.parallel
        how = (place.memory, place.meeting, parallel.topology.rank_in_group(self._rank), parallel)
        self._ranks = ranks_in(kernels, *how)
        if self._link.failure is not None:
            self._ranks.close()
        self._ranks.join()
        return self._ranks

    def stage_link(self) -> StageLink:
        """The link to the stages before and after this one."""
        assert self._place.stages is not None
        self._stage_link = stage_link(self._place.resolved, *self._place.stages)
        return self._stage_link

    def send(self, message: RankMessage) -> None:
        """Send a message to rank 0. Raises RankLost."""
        try:
            self._link.send(message)
        except OSError:
            self._link.fail(f"{self._link.rank_0} has closed the connection")
            self._link.check()

    def receive(self, limit_s: float = math.inf) -> RankMessage:
        """The next message of rank 0. Raises RankLost."""
        began = reported = time.monotonic()
        while True:
            self.check()
            try:
                message = self._link.next(_POLL_S)
            except Empty:
                now = time.monotonic()
                if now - began > limit_s:
                    self.give_up(f"rank 0 has not begun what {self._name} has begun within {limit_s:g} s")
                if now - reported > WAITING_LINE_S:
                    reported = now
                    logger.warning("waiting for %s", self._link.rank_0)
                continue
            if isinstance(message, Left):
                self._link.fail(f"{self._link.rank_0} has left: its script has closed its LLM, or has ended")
            else:
                return message

    def begin(self, operation: Operation) -> None:
        """Waits until rank 0 begins the same. Raises RankLost if it begins something else."""
        self.check()
        self._link.begun += 1
        other = self.receive(self._limit_s if self._link.begun > 1 else math.inf)
        assert isinstance(other, Operation), other
        if differs := difference(operation, other):
            self.give_up(f"{self._name} does not do what rank 0 does: {differs}")

    def result(self) -> StepResult:
        """The result of the oldest step. Raises FailedOnRank0, or RankLost."""
        message = self.receive()
        assert isinstance(message, Computed), message
        if message.result is None:
            raise FailedOnRank0(message.cause)
        return message.result

    def give_up(self, reason: str) -> None:
        """Ends the steps of all ranks. Raises RankLost."""
        with contextlib.suppress(OSError):
            self._link.offer(Failed(reason, EXIT_FAILED), _LEAVE_S)
        self._link.fail(reason)
        self.check()

    def cannot_start(self, error: BaseException) -> None:
        """Raises RankLost if the reason is another rank."""
        self.check()
        with contextlib.suppress(RankLost):
            self.give_up(f"{self._name} could not start: {type(error).__name__}: {error}")

    @contextlib.contextmanager
    def in_step(self, what: str = "a step") -> Iterator[None]:
        try:
            yield
        except (RankLost, FailedOnRank0):
            raise
        except BaseException as error:
            self.wait_failure()
            self.check()
            self.give_up(f"{what} of {self._name} ended in the middle: {type(error).__name__}: {error}")

    def wait_failure(self) -> None:
        """Gives the thread that receives the time to hear why an exchange has failed."""
        with contextlib.suppress(Empty, RankLost):
            self._link.next(_POLL_S)

    def check(self) -> None:
        """Raises RankLost if no step can follow."""
        self._link.check()

    def close(self) -> None:
        """Leaves the others, who do not wait for it."""
        atexit.unregister(self.close)
        if not self._is_closed:
            self._is_closed = True
            with contextlib.suppress(OSError):
                self._link.offer(Left(self._link.begun), _LEAVE_S)
            self._link.fail(f"{self._name} has left")
            self._link.shut_down()
            if self._stage_link is not None:
                self._stage_link.close()

    def _end_waiting(self) -> None:
        """End the waiting in steps of this process and of the processes that share its memory."""
        if self._place.memory is not None and not self._is_closed:
            self._place.memory.close_exchange()
        if self._ranks is not None and not self._is_closed:
            self._ranks.close()
        for end in self._place.stages or ():
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class LaunchedGroup:
    """The group as another rank than 0 sees it, which plans the same steps. The results come from rank 0."""

    def __init__(self, others: LaunchedRank, *, awaits_finish: bool = False) -> None:
        """awaits_finish: rank 0 says when a step ends. It does to the first of several stages."""
        self._others, self._awaits_finish = others, awaits_finish

    def in_step(self) -> contextlib.AbstractContextManager[None]:
        """Raises RankLost if neither this step nor a later one can be computed, FailedOnRank0 if this one cannot."""
        return self._others.in_step()

    def announce(self, plan: StepPlan) -> None:
        self._others.begin(operation_of(plan))

    def finish(self, compute: Callable[[], Any]) -> StepResult:
        with self._others.in_step():
            if self._awaits_finish:
                message = self._others.receive()
                assert isinstance(message, Finish), message
            with contextlib.suppress(SamplingFailed):
                compute()
            return self._others.result()
