"""One start of a simulated engine: the real core, loop, scheduler and stores around the fake runner, without a process.

`EngineStart` takes the place of EngineChild. Messages pass through the real wire format. `step` lets the engine take
its messages and run a step; between two calls it may be killed, stall, or lose a rank, which ends the step in which it
is noticed. Where a model has several ranks, the real LeadingRunner, RankLink and rules of RankProcesses are used; a
rank receives the plans, and its tables must be those of rank 0.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from stoker.engine import rank_processes
from stoker.engine.api import EngineInfo
from stoker.engine.core import Scheduler, SchedulerSettings, StepPlan, StepResult
from stoker.engine.engine_core import EngineCore
from stoker.engine.engine_loop import EngineLoop
from stoker.engine.messages import ExitReason, Heartbeat, Message, Ready, Submit
from stoker.engine.rank_link import Alive, Loaded, RankLink, Tokens
from stoker.engine.rank_processes import LeadingRunner, RankProcesses, _Follower
from stoker.engine.runner.slot_table import SlotTable
from stoker.engine.sampling.sampling_table import SamplingTable
from stoker.engine.step_queue import NotStarted, TimedResult
from stoker.engine.wire import decode, encode

from .invariants import Invariants
from .runner import FakeRunner
from .stores import Stores
from .truth import VOCAB

STEP_S = 0.02
KILLED = ExitReason("EngineExit", "the engine process was ended by SIGKILL")


class _Rank:
    """Another process of the model, seen from itself."""

    def __init__(self, end: socket.socket, settings: SchedulerSettings) -> None:
        self._end, self._link = end, RankLink(end)
        sampling = SamplingTable(settings.max_num_seqs, VOCAB, settings.eos_token_ids)
        self._table = SlotTable(
            settings.max_num_seqs, settings.max_model_len, settings.block_size, sampling, settings.num_groups
        )
        self._received: deque[object] = deque()
        self.is_stalled = False
        self._link.send(Loaded())

    def begin(self) -> None:
        """Take the plan of the step that runs."""
        plan = self._next()
        assert isinstance(plan, StepPlan)
        self._table.apply(plan)

    def _next(self) -> object:
        while not self._received:
            self._receive()
        return self._received.popleft()

    def _receive(self) -> None:
        message = self._link.receive()
        if not isinstance(message, Alive):
            self._received.append(message)

    def finish(self, plan: StepPlan, runner: FakeRunner) -> None:
        """Take what was sampled. runner: of rank 0, which knows the same now."""
        tokens, table = self._next(), self._table
        assert isinstance(tokens, Tokens)
        assert tokens.token_ids is not None
        table.append(plan.slots[plan.is_sampled], tokens.token_ids[plan.is_sampled])
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


class Ranks(RankProcesses):
    """The other ranks, seen from rank 0. What its thread does, `watch` does when it is called."""

    def __init__(self, num_others: int, settings: SchedulerSettings, now: Callable[[], float]) -> None:
        self._now = now
        self._size, self._changed = num_others + 1, threading.Condition()
        self._failure, self._is_closed, self._ranks = None, False, None
        self._memories, self._open_ends, self._children, self._on_ray = {}, (), [], None
        self._lost = lambda: None
        self.dies_in_step: int | None = None  # which one ends in the middle of the next step
        self._followers, self.others = [], list[_Rank]()
        for rank in range(1, num_others + 1):
            ours, theirs = socket.socketpair()
            self._followers.append(_Follower(f"rank {rank}", RankLink(ours), None, now()))
            self.others.append(_Rank(theirs, settings))

    def wait_failure(self) -> None:
        self.watch()

    def watch(self) -> None:
        """Take what the ranks have sent, and look for those that are silent."""
        with patch.object(rank_processes, "time", SimpleNamespace(monotonic=self._now)):
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


class _RunnerOfRanks:
    """A part of the step happens in each rank."""

    def __init__(self, runner: FakeRunner, ranks: Ranks) -> None:
        self._runner, self._ranks = runner, ranks

    def execute(self, plan: StepPlan) -> StepResult:
        ranks = self._ranks
        for rank in ranks.others:
            rank.begin()
        if ranks.dies_in_step is not None:
            ranks.others[ranks.dies_in_step % len(ranks.others)].end()
            raise RuntimeError("the exchange was closed")
        result = self._runner.execute(plan)
        ranks.send(Tokens(result.token_ids))
        for rank in ranks.others:
            rank.finish(plan, self._runner)
        return result


class _CheckedScheduler(Scheduler):
    on_schedule: Callable[[StepPlan | None], None]

    def schedule(self) -> StepPlan | None:
        plan = super().schedule()
        self.on_schedule(plan)
        return plan


class _Pending:
    def __init__(self, steps: Steps, plan: StepPlan) -> None:
        self._steps, self.plan = steps, plan
        self.outcome: StepResult | Exception | None = None

    def result(self) -> TimedResult:
        self._steps.execute_until(self)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        assert self.outcome is not None
        self._steps.retire(self)
        return self.outcome, STEP_S


class Steps:
    """A StepQueue: executes steps when their results are asked for, or before."""

    def __init__(self, runner: Any, fake: FakeRunner, invariants: Invariants, depth: int, random: Random) -> None:
        self.depth = depth
        self.fails_next = False
        self._runner, self._fake, self._invariants, self._random = runner, fake, invariants, random
        self._pending: list[_Pending] = []

    @property
    def all_executed(self) -> bool:
        return all(isinstance(each.outcome, StepResult) for each in self._pending)

    def submit(self, plan: StepPlan) -> _Pending:
        self._pending.append(_Pending(self, plan))
        if self._random.random() < 0.3:
            self.execute_until(self._pending[-1])
        return self._pending[-1]

    def execute_until(self, last: _Pending) -> None:
        for each in self._pending[: self._pending.index(last) + 1]:
            if each.outcome is None:
                each.outcome = self._execute(each.plan)

    def _execute(self, plan: StepPlan) -> StepResult | Exception:
        if any(isinstance(each.outcome, Exception) for each in self._pending):
            return NotStarted()
        try:
            if self.fails_next:
                self.fails_next = False
                raise MemoryError("broken")
            result: StepResult = self._runner.execute(plan)
        except AssertionError:  # of a check
            raise
        except Exception as error:
            return error
        return result

    def retire(self, pending: _Pending) -> None:
        self._pending.remove(pending)
        self._invariants.retired(STEP_S)

    def recover(self, unfinished: list[_Pending]) -> None:
        for each in unfinished:
            if isinstance(each.outcome, StepResult):
                self._fake.doubt(each.plan)
            else:
                is_begun = isinstance(each.outcome, MemoryError) and self._random.random() < 0.5
                self._fake.fail(each.plan, is_begun=is_begun)
            self._pending.remove(each)
            self._invariants.retired(0.0)


class _Port:
    """A Port whose loop runs one round at a time."""

    def __init__(self, receive: Callable[[Message], None]) -> None:
        self._receive = receive
        self.inbox: list[bytes] = []
        self.is_stopped = False
        self._rounds = 0

    def open(self) -> None:
        self.is_stopped, self._rounds = False, 0

    def receive(self, wait_s: float | None) -> list[tuple[None, Message]]:
        self._rounds += 1
        if self._rounds > 1:
            self.is_stopped = True
            return []
        taken, self.inbox = self.inbox, []
        return [(None, decode(data)) for data in taken]

    def send(self, client: None, message: Message) -> bool:
        self._receive(decode(encode(message)))
        return True

    def broadcast(self, message: Message) -> None:
        self._receive(decode(encode(message)))


class EngineStart:
    """Implements Child."""

    def __init__(
        self,
        name: str,
        settings: SchedulerSettings,
        depth: int,
        receive: Callable[[Message], None],
        *,
        num_others: int = 0,
        stores: Stores | None = None,
        num_loading: int = 3,
        can_start: bool = True,
    ) -> None:
        """num_others: ranks besides the first. num_loading: calls of `step` until it is ready, or fails to start."""
        loop = asyncio.get_running_loop()
        self.paths: list[Path] = []
        self.pid = None
        self.name = name
        self.request_ids: set[str] = set()  # that it was sent
        self.num_stalled = 0  # calls of `step` in which nothing happens
        self.is_silent = False  # without heartbeats meanwhile
        self.stores = stores
        self._receive, self._port = receive, _Port(receive)
        self._num_loading, self._can_start = num_loading, can_start
        self._ended: asyncio.Future[ExitReason] = loop.create_future()
        self._time = loop.time
        self._heartbeat_at = loop.time()
        if stores is not None:
            stores.restart()
            settings = stores.applied_to(settings)
        self.scheduler = _CheckedScheduler(settings)
        self.scheduler.on_schedule = self._scheduled
        self.runner = FakeRunner(settings, stores)
        self._live: dict[str, Any] = {}
        self.invariants = Invariants(self.scheduler, self.runner, self._live)
        self.ranks = Ranks(num_others, settings, loop.time) if num_others else None
        runner: Any = self.runner
        if self.ranks is not None:
            runner = LeadingRunner(_RunnerOfRanks(self.runner, self.ranks), self.ranks)  # type: ignore[arg-type]
        self.steps = Steps(runner, self.runner, self.invariants, depth, Random(f"steps of {name}"))
        self.core = EngineCore(
            self.scheduler, self.steps, _info(settings), others=self.ranks, store=settings.store, clock=loop.time
        )
        self.loop = EngineLoop(self.core, self._port, loop.time)

    # ---- Child

    async def start(self) -> None:
        pass

    def send(self, message: Message) -> None:
        if isinstance(message, Submit):
            self.request_ids.add(message.request.request_id)
        if not self.has_ended:
            self._port.inbox.append(encode(message))

    async def ended(self) -> ExitReason:
        return await asyncio.shield(self._ended)

    async def stop(self, grace_s: float = 1.0) -> None:
        if not self.has_ended:
            self.end(ExitReason("EngineExit", "stopped"))

    # ---- from outside

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    @property
    def is_loading(self) -> bool:
        return self._num_loading > 0

    def end(self, reason: ExitReason = KILLED) -> None:
        if self.ranks is not None:
            self.ranks.close()
        if self.stores is not None:
            self.stores.lose()
        self._ended.set_result(reason)

    def step(self) -> None:
        if self.has_ended:
            return
        if self._num_loading:
            self._load()
            return
        if self._time() - self._heartbeat_at >= 1.0 and not (self.num_stalled and self.is_silent):
            self._heartbeat_at = self._time()
            self._receive(decode(encode(Heartbeat(self.core.num_steps, self.core.is_stepping, 0.0))))
        if self.num_stalled:
            self.num_stalled -= 1
            return
        if self.ranks is not None:
            self.ranks.watch()
        if self._waits_for_rank or not (self._port.inbox or self._has_work):
            return
        num_steps, num_waiting = self.core.num_steps, len(self._port.inbox)
        self._port.open()
        try:
            self.loop.run()
            self.core.check()
        except AssertionError:
            raise
        except Exception as error:
            self.end(ExitReason(type(error).__name__, str(error), 1))
            return
        if num_waiting or self.core.num_steps != num_steps:
            self.check()

    @property
    def _has_work(self) -> bool:
        return self.core.has_work or (self.ranks is not None and self.ranks._failure is not None)

    @property
    def _waits_for_rank(self) -> bool:
        """A rank that does not answer holds up the step that runs."""
        if self.ranks is None or self.ranks._failure is not None or not self.core.has_work:
            return False
        return any(rank.is_stalled for rank in self.ranks.others)

    def _load(self) -> None:
        self._num_loading -= 1
        if self._num_loading:
            return
        if self._can_start:
            self._receive(decode(encode(Ready(self.core.info))))
        else:
            self.end(ExitReason("MemoryError", "no memory", 4))

    # ---- checks

    def _scheduled(self, plan: StepPlan | None) -> None:
        if plan is not None:
            self.invariants.check_plan(plan)
        else:
            self._check_state()  # it may have preempted

    def _check_state(self) -> None:
        self._live.clear()
        self._live.update((request.request_id, None) for request in self.scheduler.sequences.live)
        self.invariants.check_state()

    def check(self) -> None:
        self._check_state()
        stored = self.scheduler._planner.stored
        if self.steps.all_executed and not (stored is not None and stored._loads):
            self.invariants.check_contents()

    def check_empty(self) -> None:
        """After the last request."""
        self.check()
        stats, dispatch = self.scheduler.stats(), self.loop._dispatch
        assert stats.num_free_blocks == stats.num_blocks, f"{self.name} holds blocks of nobody"
        assert not self.core.has_work
        assert not dispatch._owners, f"{self.name} still knows requests that have ended"
        assert not any(dispatch._requests.values())


def _info(settings: SchedulerSettings) -> EngineInfo:
    return EngineInfo(
        model="fake", max_model_len=settings.max_model_len, vocab_size=VOCAB, num_blocks=settings.num_blocks,
        block_size=settings.block_size, max_cached_len=settings.max_sequence_len,
        max_num_seqs=settings.max_num_seqs, max_num_batched_tokens=settings.max_num_batched_tokens,
        eos_token_ids=settings.eos_token_ids, weights_bytes=0, kv_cache_bytes=0, dtype="float32", device="cpu",
        kernels={}, phases={},
    )  # fmt: skip
