"""The ranks of a model as threads of one process; tests/e2e has them as processes."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from threading import Thread

from stoker.config import Resolved
from stoker.engine.api import EngineOutput, EngineRequest
from stoker.engine.collectives import Ranks
from stoker.engine.collectives.connect import (
    ADDRESS,
    open_store,
    prompt_ranks_in,
    ranks_in,
    stage_link,
    wait_for_all,
)
from stoker.engine.collectives.gloo import GlooRanks, Meeting
from stoker.engine.collectives.stages import StageLink
from stoker.engine.core.block_store import BlockStore
from stoker.engine.host.shared_memory import SharedMemory
from stoker.engine.kernels import KernelSet
from stoker.engine.rank_process import follow, load_rank
from stoker.engine.ranks.adapters_of_ranks import OthersOfRanks
from stoker.engine.ranks.followers import Follower, Followers
from stoker.engine.ranks.group_runner import GroupRunner, LeadingGroup
from stoker.engine.ranks.heads import lead
from stoker.engine.runner.heads import around
from stoker.engine.runner.load_runner import host_parts, load_runner
from stoker.engine.runner.rank_loading import RankLoading, rank_loading
from stoker.engine.runner.rank_transfer import rank_transfer
from stoker.engine.runner.runner import Runner
from stoker.engine.step import StepPlan, StepResult
from stoker.engine.transport.rank_link import RankLink
from stoker.engine.transport.rank_messages import Loaded

from .engine import Engine, joined, scheduler_of

_END_S = 10.0  # for the steps that they still have; then a failed step is the reason that they do not end


class Threads(Followers):
    """Instead of RankProcesses: the other ranks as threads of this process."""

    def __init__(self, settings: Resolved) -> None:
        topology = settings.topology
        super().__init__(topology.stage_size)
        self._settings = settings
        num_stages, self._num_parts = settings.num_stages, topology.group_size
        self._memories = [SharedMemory.new(self._num_parts) for _ in range(topology.num_groups)]
        self._store, port = open_store(ADDRESS)
        meeting = self._meeting = partial(Meeting, ADDRESS, port, ADDRESS)
        self._connect = lambda kernels, group, rank: wait_for_all(
            ranks_in(kernels, self._memories[group], meeting(f"group {group}"), rank, settings.parallel)
        )
        self._rings: list[StageLink] = []
        self._threads: list[Thread] = []
        pairs = [[socket.socketpair() for _ in range(num_stages)] for _ in range(self._size * (num_stages > 1))]
        for rank in range(settings.topology.num_ranks):
            stage, own_rank = divmod(rank, self._size)
            if pairs:
                ends = pairs[own_rank]
                self._rings.append(stage_link(settings, ends[stage - 1][1], ends[stage][0]))
            if rank:
                mine, its = map(RankLink, socket.socketpair())
                self._followers.append(Follower(f"rank {rank}", mine, None))
                self._threads.append(Thread(target=self._compute, args=(its, rank)))
                self._threads[-1].start()

    def _compute(self, link: RankLink, rank: int) -> None:
        with contextlib.closing(link), contextlib.suppress(EOFError):
            stage, ring = rank // self._size, self._rings[rank] if self._rings else None
            runner = load_rank(self._settings, stage if self._rings else 0, link, ring, self._loading(rank))
            follow(runner, link, awaits_finish=bool(self._rings) and not stage)

    def _ranks_of(self, rank: int) -> Callable[[KernelSet], Ranks] | None:
        group, own_rank = divmod(rank, self._num_parts)
        if self._num_parts == 1:
            return None
        return lambda kernels: self._connect(kernels, group, own_rank)

    def _prompt_ranks(self, rank: int) -> GlooRanks | None:
        found = prompt_ranks_in(self._meeting(), rank, self._settings.parallel)
        return None if found is None else wait_for_all(found)

    def _loading(self, rank: int) -> RankLoading:
        prompt_ranks_of = partial(self._prompt_ranks, rank)
        return rank_loading(self._settings, self._ranks_of(rank), lambda number: number, prompt_ranks_of)

    def leading(self, store: BlockStore | None = None) -> tuple[Runner, GroupRunner]:
        transfer_of = None if store is None else rank_transfer(self._settings, store)
        head = around(self._rings[0], lead(self)) if self._rings else lead(self)
        parts = host_parts(head, transfer_of, announce=self.send)
        runner = load_runner(self._settings, parts, self._loading(0).first)
        assert all(isinstance(each.link.receive(), Loaded) for each in self._followers)
        if (adapters := runner.loaded.adapters) is not None:
            adapters.others = OthersOfRanks(self)
            self._start_watching()  # it takes the answers of the others
        return runner, GroupRunner(runner, LeadingGroup(self, has_stages=bool(self._rings)))

    def wait_failure(self) -> None:
        """A thread does not end alone."""

    def lose(self, reason: str, exit_code: int = 1) -> None:
        assert self._is_closed, reason

    def close(self) -> None:
        super().close()
        for thread in self._threads:  # groups that share prompts may have steps left: they compute single tokens alone
            thread.join(_END_S)
        for memory in self._memories:
            memory.close_exchange()
        for thread in self._threads:
            thread.join()
        for ring in self._rings:
            ring.close()


class DividedEngine(Engine):
    def __init__(self, settings: Resolved, others: Threads, store: BlockStore | None) -> None:
        self.own, self.runner = others.leading(store)  # type: ignore[assignment]
        self.own.warm_up(self.runner.execute)
        self.scheduler = scheduler_of(settings, self.own, store)
        self.num_mixed_steps = 0
        self.max_in_flight = 0  # steps at a time
        self._depth = settings.num_stages

    def run(self, requests: list[EngineRequest]) -> dict[str, EngineOutput]:
        """As Engine, with a step in flight for each stage."""
        if self._depth == 1:
            return super().run(requests)
        for request in requests:
            self.scheduler.add(request)
        done: dict[str, EngineOutput] = {}
        begun: deque[tuple[StepPlan, Callable[[], StepResult]]] = deque()
        while self.scheduler.has_work:
            while len(begun) < self._depth and (plan := self.scheduler.schedule()) is not None:
                begun.append((plan, self.runner.launch(plan)))
            self.max_in_flight = max(self.max_in_flight, len(begun))
            plan, finish = begun.popleft()
            for output in self.scheduler.finish_step(plan, finish()):
                before = done.get(output.request_id)
                done[output.request_id] = output if before is None else joined(before, output)
        return done


@contextlib.contextmanager
def divided(settings: Resolved, store: BlockStore | None = None) -> Iterator[DividedEngine]:
    """store: of rank 0."""
    others = Threads(settings)
    try:
        yield DividedEngine(settings, others, store)
    finally:
        others.close()
