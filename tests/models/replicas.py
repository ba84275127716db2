"""Replicas that share experts, as threads of one process; tests/e2e has them as processes."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from threading import Barrier, Condition, Thread

from stoker.config import Resolved
from stoker.engine.api import EngineOutput, EngineRequest
from stoker.engine.collectives import SharedExperts
from stoker.engine.core import Scheduler
from stoker.engine.executor.scheduler import scheduler_settings
from stoker.engine.host.neighbours import Neighbours
from stoker.engine.loop.engine_core import EngineCore
from stoker.engine.loop.executor import Executor
from stoker.engine.loop.step_queue import InlineStepQueue
from stoker.engine.ranks.group_runner import GroupRunner
from stoker.engine.ranks.sharing_group import SharingGroup
from stoker.engine.runner.load_runner import load_runner
from stoker.engine.runner.loaded_model import load_on_cpu
from stoker.engine.runner.runner import Runner
from stoker.engine.step import StepPlan, StepResult

from .engine import joined

LIMIT_S = 120.0


class _SharedExecutor(Executor):
    is_shared = True

    def __init__(self, steps: InlineStepQueue, replicas: SharedExperts) -> None:
        super().__init__(steps)
        self._replicas = replicas

    @property
    def is_waited_for(self) -> bool:
        return self._replicas.is_waited_for


class Replica:
    """An EngineCore, and the thread that steps it as an engine process does."""

    def __init__(self, settings: Resolved, neighbours: Neighbours, started: Barrier) -> None:
        self._settings, self._neighbours, self._started = settings, neighbours, started
        self._arriving: SimpleQueue[EngineRequest | None] = SimpleQueue()
        self._changed = Condition()
        self._done: dict[str, EngineOutput] = {}
        self.failure: Exception | None = None
        self.sizes: list[int] = []  # of its steps, in tokens
        self.num_preemptions = 0
        self.runner: Runner
        self.thread = Thread(target=self._run)
        self.thread.start()

    def submit(self, requests: Sequence[EngineRequest | None]) -> None:
        for request in requests:
            self._arriving.put(request)
        self._neighbours.own_doorbell.ring()

    def outputs(self, count: int) -> dict[str, EngineOutput]:
        """Waits until `count` requests have ended."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._num_ended >= count or self.failure, LIMIT_S)
            assert self.failure is None, self.failure
            return dict(self._done)

    @property
    def _num_ended(self) -> int:
        return sum(output.finish_reason is not None for output in self._done.values())

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            self._neighbours.memory.close_exchange()
            with self._changed:
                self.failure = error
                self._changed.notify_all()

    def _serve(self) -> None:
        of = partial(SharedExperts.of, neighbours=self._neighbours)
        load = partial(load_on_cpu, replicas_of=of)
        self.runner = load_runner(self._settings, load=load)
        replicas = self.runner.loaded.replicas
        assert replicas is not None
        replicas.join()
        together = GroupRunner(self.runner, SharingGroup(replicas))
        self.runner.warm_up(together.execute)
        scheduler = Scheduler(scheduler_settings(self._settings))
        executor = _SharedExecutor(InlineStepQueue(_Counted(together, self.sizes)), replicas)
        core = EngineCore(scheduler, executor, self.runner.info())
        self._started.wait()
        while self._take(core):
            if core.has_work:
                self._keep(core.step())
                self.num_preemptions = core.stats.num_preemptions
            elif not core.assist():
                select.select([self._neighbours.own_doorbell.fd], [], [])

    def _take(self, core: EngineCore) -> bool:
        self._neighbours.own_doorbell.silence()
        while not self._arriving.empty():
            request = self._arriving.get()
            if request is None:
                return False
            core.add(request)
        return True

    def _keep(self, outputs: Sequence[EngineOutput]) -> None:
        with self._changed:
            for output in outputs:
                before = self._done.get(output.request_id)
                self._done[output.request_id] = output if before is None else joined(before, output)
            self._changed.notify_all()


class _Counted:
    def __init__(self, runner: GroupRunner, sizes: list[int]) -> None:
        self._runner, self._sizes = runner, sizes

    def execute(self, plan: StepPlan) -> StepResult:
        result = self._runner.execute(plan)
        self._sizes.append(plan.num_batched_tokens)
        return result


@contextlib.contextmanager
def sharing(settings: Resolved) -> Iterator[list[Replica]]:
    """All replicas of a deployment, which have begun to serve."""
    ranks = settings.topology.replicas
    neighbours, started = Neighbours.new(len(ranks)), Barrier(len(ranks) + 1)
    replicas = [Replica(settings.replica(rank), replace(neighbours, rank=rank), started) for rank in ranks]
    try:
        started.wait(LIMIT_S)
        yield replicas
    finally:
        for replica in replicas:
            replica.submit([None])
        for replica in replicas:
            replica.thread.join()
