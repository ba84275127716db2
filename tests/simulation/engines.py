"""One start of a simulated engine: the real core, loop, scheduler and stores around the fake runner, without a process.

`EngineStart` takes the place of EngineChild. Messages pass through the real wire format. `step` lets the engine take
its messages and run a step; between two calls it may be killed, stall, or lose a rank (ranks.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from stoker.engine.api import EngineInfo
from stoker.engine.core import Scheduler, SchedulerSettings
from stoker.engine.loop.engine_core import EngineCore
from stoker.engine.loop.engine_loop import EngineLoop
from stoker.engine.loop.executor import Executor
from stoker.engine.ranks.group_runner import GroupRunner, LeadingGroup
from stoker.engine.step import StepPlan
from stoker.engine.transport.messages import ExitReason, Heartbeat, Message, Ready, Submit
from stoker.engine.transport.wire import decode, encode

from .invariants import Invariants
from .ranks import Ranks, RunnerOfRanks
from .runner import FakeRunner
from .steps import Steps
from .stores import Stores
from .truth import VOCAB

KILLED = ExitReason("EngineExit", "the engine process was ended by SIGKILL")


class _CheckedScheduler(Scheduler):
    on_schedule: Callable[[StepPlan | None], None]

    def schedule(self) -> StepPlan | None:
        plan = super().schedule()
        self.on_schedule(plan)
        return plan


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


class _ExecutorOfRanks(Executor):
    def __init__(self, steps: Steps, ranks: Ranks) -> None:
        super().__init__(steps)
        self._ranks = ranks

    def check(self) -> None:
        self._ranks.check()

    def close(self) -> None:
        self._ranks.close()


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
            runner = GroupRunner(RunnerOfRanks(self.runner, self.ranks), LeadingGroup(self.ranks))
        self.steps = Steps(runner, self.runner, self.invariants, depth, Random(f"steps of {name}"))
        executor = Executor(self.steps) if self.ranks is None else _ExecutorOfRanks(self.steps, self.ranks)
        self.core = EngineCore(self.scheduler, executor, _info(settings), store=settings.store, clock=loop.time)
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
        assert stats.num_free_blocks == stats.num_blocks, f"{self.name} holds blocks, and has no request"
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
