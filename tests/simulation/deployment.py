"""A deployment that is simulated: clients, router, supervision and engines, whose processes and ranks die.

ReplicatedClient, EngineProcessClient and all that they use are the real code, on an event loop with a virtual clock;
engines.py has their engines. As in simulation.py, a list of actions determines everything.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.virtual_time import VirtualTimeLoop

from stoker.engine.api import (
    CacheScope,
    EngineDead,
    EngineRequest,
    FinishReason,
    InvalidRequest,
    QueueFull,
    RequestInputs,
    StoredBlocks,
)
from stoker.engine.client.engine_client import EngineState
from stoker.engine.client.process import EngineProcessClient
from stoker.engine.client.replicated import ReplicatedClient
from stoker.engine.core import SchedulerSettings
from stoker.engine.host.supervision import RESTART_WINDOW_S, STALL_LIMIT_S
from stoker.engine.transport.messages import Message

from .deployed_actions import Action, FailStart, FailStep, Kill, LoseRank, Pass, Stall, StallRank, Tick
from .engines import EngineStart
from .network import Network
from .simulation import Abort, Add, Drain, FailStore
from .stores import Stores, StoreSettings
from .truth import NUM_SALTS, Client

TICK_S = 0.02
MAX_TICKS_WAITING = 10_000


@dataclass(frozen=True, slots=True)
class DeploymentSettings:
    num_replicas: int
    num_others: int  # ranks besides the first, of each replica
    max_restarts: int  # of each replica
    stores: StoreSettings | None


@dataclass(slots=True)
class _Asked:
    """A request, seen from its client."""

    client: Client
    task: asyncio.Task[None]
    is_refused_without_engine: bool  # no engine was there when it came


class Deployment:
    def __init__(self, name: str, settings: SchedulerSettings, depth: int, wanted: DeploymentSettings) -> None:
        self._name, self.settings, self._depth, self._wanted = name, settings, depth, wanted
        self._random = Random(f"deployment {name}")
        self.script: list[Action] = []
        self.clients: dict[str, Client] = {}
        self.sources: list[StoredBlocks] = []
        self.events: Counter[str] = Counter()
        self._asked: dict[str, _Asked] = {}  # not ended
        self._errors: list[BaseException] = []
        self._starts: defaultdict[int, list[EngineStart]] = defaultdict(list)
        self._started_at: defaultdict[int, list[float]] = defaultdict(list)
        self._fail_starts: set[int] = set()
        self._num_counted: Counter[str] = Counter()  # steps, by name of a start
        self.stores: dict[int, Stores] = {}
        if wanted.stores is not None:
            network = Network(Random(f"network of {name}"), wanted.stores.failure_rate)
            for rank in range(wanted.num_replicas):
                self.stores[rank] = Stores(f"{name} {rank}", wanted.stores, settings, network)
        self._loop = VirtualTimeLoop()
        self.replicas = {
            rank: EngineProcessClient("", max_restarts=wanted.max_restarts, child_of=self._child_of(rank))
            for rank in range(wanted.num_replicas)
        }
        self.client = ReplicatedClient(self.replicas)
        self._run(self._start())

    def _child_of(self, rank: int) -> Callable[[Callable[[Message], None]], EngineStart]:
        def start(receive: Callable[[Message], None]) -> EngineStart:
            can_start = rank not in self._fail_starts
            self._fail_starts.discard(rank)
            self._started_at[rank].append(self._loop.time())
            self.events["engines that did not start"] += not can_start
            started = EngineStart(
                f"{self._name}: start {len(self._starts[rank])} of replica {rank}",
                self.settings,
                self._depth,
                receive,
                num_others=self._wanted.num_others,
                stores=self.stores.get(rank),
                num_loading=self._random.choice((1, 3, 20)),
                can_start=can_start,
            )
            self._starts[rank].append(started)
            return started

        return start

    def _run(self, main: Coroutine[Any, Any, None]) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(main)

    async def _start(self) -> None:
        starting = asyncio.create_task(self.client.start())
        while not starting.done():
            await self._tick()
        await starting

    @property
    def num_steps(self) -> int:
        return self.events["steps"]

    @property
    def live(self) -> list[str]:
        return list(self._asked)

    @property
    def is_over(self) -> bool:
        """An engine is not started again: the server ends."""
        return self.client.state is EngineState.DEAD

    def apply(self, action: Action) -> None:
        """Raises AssertionError if a check fails, or what the code raised."""
        self.script.append(action)
        self._run(self._apply(action))

    async def _apply(self, action: Action) -> None:
        match action:
            case Add():
                self._add(action)
            case Abort(request_id) if request_id in self._asked:
                self._asked[request_id].task.cancel()
                self.events["clients that left"] += 1
            case Tick():
                await self._tick()
            case Pass(seconds):
                await self._pass(seconds)
            case FailStore(fault, number) if self.stores:
                self.stores[number % len(self.stores)].fail(fault, number)
            case FailStart(replica):
                self._fail_starts.add(replica)
            case Drain():
                await self._drain()
            case FailStep() | Kill() | LoseRank() | StallRank() | Stall():
                self._break(action)
        for _ in range(0 if isinstance(action, Tick | Add) else 6):  # until all tasks have seen it
            await asyncio.sleep(0)
        self._check()

    # ---- faults

    def _break(self, action: FailStep | Kill | LoseRank | StallRank | Stall) -> None:
        engine = self._running(action.replica)
        if engine is None:
            return
        match action:
            case FailStep():
                engine.steps.fails_next = True
            case Kill():
                engine.end()
            case LoseRank(_, rank, in_step) if engine.ranks is not None:
                if in_step:
                    engine.ranks.dies_in_step = rank
                else:
                    engine.ranks.others[rank % len(engine.ranks.others)].end()
            case StallRank(_, rank) if engine.ranks is not None:
                engine.ranks.others[rank % len(engine.ranks.others)].is_stalled = True
            case Stall(_, num_ticks, is_silent):
                engine.num_stalled, engine.is_silent = num_ticks, is_silent
            case _:
                return
        self.events[f"faults: {type(action).__name__}"] += 1

    def _running(self, replica: int) -> EngineStart | None:
        starts = self._starts[replica]
        return starts[-1] if starts and not starts[-1].has_ended and not starts[-1].is_loading else None

    # ---- time

    async def _tick(self) -> None:
        for starts in self._starts.values():
            for engine in starts[-1:]:
                engine.step()
                self.events["steps"] += engine.core.num_steps - self._num_counted[engine.name]
                self._num_counted[engine.name] = engine.core.num_steps
        for stores in self.stores.values():
            stores.tick()
            stores.check()
        await asyncio.sleep(TICK_S)

    async def _pass(self, seconds: float) -> None:
        """Engines step now and then, so that heartbeats are sent."""
        until = self._loop.time() + seconds
        while self._loop.time() < until:
            await self._tick()
            await asyncio.sleep(1.0)

    # ---- clients

    def _add(self, action: Add) -> None:
        assert action.sampling.seed is not None
        request = EngineRequest(
            request_id=action.request_id,
            inputs=RequestInputs(action.prompt, action.sampling, CacheScope(str(action.sampling.seed % NUM_SALTS))),
            priority=action.priority,
            is_for_others=action.is_for_others,
            source=action.source,
        )
        client = Client(request)
        waits_s = self._random.choice((0.0, 0.0, 0.1, 1.0))
        task = asyncio.create_task(self._consume(client, waits_s))
        self._asked[action.request_id] = _Asked(client, task, not self.client.is_available)
        self.clients[action.request_id] = client
        self.events["requests"] += 1

    async def _consume(self, client: Client, waits_s: float) -> None:
        """waits_s: between two outputs; what comes meanwhile is merged."""
        try:
            await self._read(client, waits_s)
        except BaseException as error:  # reported with the next check
            self._errors.append(error)
        finally:
            del self._asked[client.request.request_id]

    async def _read(self, client: Client, waits_s: float) -> None:
        try:
            async with aclosing(self.client.generate(client.request)) as outputs:
                async for output in outputs:
                    client.receive(output, self.settings, is_merged=True)
                    await asyncio.sleep(waits_s)
            self._ended(client, output.stored)
        except EngineDead:
            self._failed(client.request.request_id)
        except QueueFull:
            self.events["refused"] += 1
        except InvalidRequest:
            self.events["invalid"] += 1
        except asyncio.CancelledError:
            self.events["ended by leaving"] += 1

    def _ended(self, client: Client, stored: StoredBlocks | None) -> None:
        assert client.finish_reason is not None, "a stream ended without its last output"
        self.events[f"ended by {client.finish_reason.value}"] += 1
        if client.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert (stored is not None) == client.request.is_for_others, "what is stored is not reported"
            if stored is not None:
                self.sources.append(stored)

    def _failed(self, name: str) -> None:
        """Only a request of an engine that ended may fail, or one that came when there was none."""
        its = [start for starts in self._starts.values() for start in starts if name in start.request_ids]
        self.events["ended by the end of an engine" if its else "came when no engine was there"] += 1
        if its:
            assert any(start.has_ended for start in its), "a request failed, and its engine runs"
        else:
            assert self._asked[name].is_refused_without_engine or not self.client.is_available

    # ---- checks

    def _check(self) -> None:
        if self._errors:
            raise self._errors[0]
        for rank, replica in self.replicas.items():
            last = self._starts[rank][-1]
            assert replica.state is not EngineState.READY or not (last.has_ended or last.is_loading)
            recent = [each for each in self._started_at[rank][1:] if each > self._loop.time() - RESTART_WINDOW_S]
            assert len(recent) <= self._wanted.max_restarts, "started again more often than allowed"
            assert len(replica._streams) <= len(self._asked)
        for start in [start for starts in self._starts.values() for start in starts[:-1]]:
            assert start.has_ended, "two engines of one replica run"

    def _check_all_ended(self) -> None:
        for rank, load in self.client._router._loads.items():
            assert (load.num_sequences, load.num_queued_tokens) == (0, 0), f"the router counts work of replica {rank}"
        for rank, replica in self.replicas.items():
            assert not len(replica._streams)
            engine = self._running(rank)
            if engine is not None:
                engine.check_empty()

    async def _drain(self) -> None:
        for starts in self._starts.values():
            starts[-1].num_stalled = min(starts[-1].num_stalled, int(2 * STALL_LIMIT_S / TICK_S))
        self._fail_starts.clear()
        for _ in range(MAX_TICKS_WAITING):
            if not self._asked and not any(self._is_busy(rank) for rank in self.replicas):
                break
            await self._tick()
            self._check()
        assert not self._asked, f"requests have not ended: {sorted(self._asked)}"
        self._check_all_ended()
        for starts in self._starts.values():
            self.events["engines that ended"] += sum(start.has_ended for start in starts)
            self.events["engines"] += len(starts)
            for start in starts:
                stats = start.scheduler.stats()
                self.events["tokens read from stores"] += stats.store_hits
                self.events["preemptions"] += stats.num_preemptions
                self.events["tokens"] += stats.num_step_tokens
        self.events["deployments that stayed down"] += self.is_over
        for number, stores in enumerate(self.stores.values()):
            self.events += stores.faults if number == 0 else Counter()  # the network is common

    def _is_busy(self, rank: int) -> bool:
        """Aborts may be on their way."""
        engine = self._running(rank)
        return engine is not None and (engine.core.has_work or bool(engine._port.inbox))

    def close(self) -> None:
        self._run(self._close())
        self._loop.close()
        asyncio.set_event_loop(None)
        for stores in self.stores.values():
            stores.close()

    async def _close(self) -> None:
        for asked in list(self._asked.values()):
            asked.task.cancel()
        await asyncio.gather(*(asked.task for asked in self._asked.values()), return_exceptions=True)
        await self.client.close()
