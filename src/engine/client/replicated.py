"""ReplicatedClient: several engines that serve the same model, as one EngineClient. Each request is served by one.

A replica that has ended fails its own requests only; while it is started again the others serve. One that will not be
started again is the end of all, as it is with a single engine: a supervisor then starts the server again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import TypeVar

from ..api import AdapterRef, DraftCounts, EngineDead, EngineInfo, EngineOutput, EngineRequest, EngineStats, QueueFull
from .engine_client import EngineClient, EngineState, StreamingClient
from .pooled_call import OnOutput, no_listener
from .routing import Placement, Reported, Router

_Result = TypeVar("_Result")
_PLACED_PER_TURN = 256  # requests of a call, in one iteration of the event loop: about 2 ms
# The state of all, if no replica is ready: the first of these that one has.
_IN_ORDER = (EngineState.SLEEPING, EngineState.STALLED, EngineState.RESTARTING, EngineState.STARTING)


def replicas_of(client: EngineClient, rank: int) -> Mapping[int, EngineClient]:
    """The engines that a client stands for, by rank; `rank` is the rank of an engine that serves alone."""
    if isinstance(client, ReplicatedClient):
        return client.replicas
    return {rank: client}


class ReplicatedClient:
    """Replicas by rank; the router sees the ready ones."""

    def __init__(
        self, replicas: Mapping[int, StreamingClient], close_also: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """replicas: by rank; not started, or started by others. close_also: what they have in common."""
        self._replicas = dict(replicas)
        self._close_also = close_also
        self._router = Router()
        self._opened: dict[int, EngineInfo] = {}  # of the start of each replica that the router knows

    @property
    def replicas(self) -> Mapping[int, StreamingClient]:
        return self._replicas

    @property
    def state(self) -> EngineState:
        """READY if a replica is; DEAD if one is, because a server does not continue with less than it was given."""
        states = {replica.state for replica in self._replicas.values()}
        if EngineState.DEAD in states:
            return EngineState.DEAD
        if EngineState.READY in states:
            return EngineState.READY
        return next(state for state in _IN_ORDER if state in states)

    def state_of(self, rank: int | None) -> EngineState:
        return self.state if rank is None else self._replicas[rank].state

    @property
    def reason(self) -> str:
        state = self.state
        if state is EngineState.READY:
            return ""
        return next(f"replica {rank}: {each.reason}" for rank, each in self._replicas.items() if each.state is state)

    @property
    def info(self) -> EngineInfo:
        """Info of the replica that accepts the shortest requests: what it accepts, all do."""
        known = [replica.info for replica in self._replicas.values() if replica.has_started]
        if not known:
            raise RuntimeError("no replica has started yet")
        return min(known, key=lambda info: info.max_cached_len)

    @property
    def stats(self) -> EngineStats:
        """Sums over the replicas, without distributions and other statistics that an option adds."""
        return _sum([replica.stats for replica in self._replicas.values()])

    async def start(self) -> EngineInfo:
        """Start all. Raises EngineDead with the cause of the first that fails; then none is left."""
        starts = [asyncio.ensure_future(replica.start()) for replica in self._replicas.values()]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for each in starts:
                each.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self.close()
            raise
        return self.info

    async def close(self) -> None:
        await asyncio.gather(*(replica.close() for replica in self._replicas.values()))
        if self._close_also is not None:
            await self._close_also()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """Raises what the chosen replica raises, and KeyError for a rank that is not one of them.

        A replica whose queue is full is passed over as long as there are others.
        """
        full: set[int] = set()
        available = self._available(request.rank, full)
        if not available:
            raise EngineDead(self.reason or f"the replica {request.rank} is not ready")
        while True:
            placement = self._router.place(request.inputs.prompt_token_ids, request.inputs.scope, available)
            try:
                async with aclosing(self._replicas[placement.rank].generate(request)) as outputs:
                    async for output in outputs:
                        self._router.started(placement)
                        yield output
                return
            except QueueFull:
                full.add(placement.rank)
                available = self._available(request.rank, full)
                if not available:  # the others are full too, or have ended meanwhile
                    raise
            finally:
                self._router.ended(placement)

    async def pool(self, requests: Sequence[EngineRequest], on_output: OnOutput = no_listener) -> list[EngineOutput]:
        """See EngineClient.pool. The replicas share the requests. Raises KeyError as `generate` does.

        What a replica whose queue is full has not computed is shared by the others.
        """
        outputs: dict[int, EngineOutput] = {}
        full: set[int] = set()
        while left := [place for place in range(len(requests)) if place not in outputs]:
            parts: dict[int, list[int]] = {}
            placements: list[Placement] = []
            try:
                for count, place in enumerate(left, 1):
                    placements.append(self._place(requests[place], full))
                    parts.setdefault(placements[-1].rank, []).append(place)
                    if count % _PLACED_PER_TURN == 0:
                        await asyncio.sleep(0)
                calls = [self._pool_part(*part, requests, full, on_output) for part in parts.items()]
                for found in await _together(calls):
                    outputs |= found
            finally:
                for placement in placements:
                    self._router.ended(placement)
        return [outputs[place] for place in range(len(requests))]

    def _place(self, request: EngineRequest, full: set[int]) -> Placement:
        """Raises QueueFull if all replicas that could serve it are full, and EngineDead."""
        if available := self._available(request.rank, full):
            return self._router.place_pooled(request.inputs.prompt_token_ids, available)
        if full:
            raise QueueFull("the queues of all replicas are full")
        raise EngineDead(self.reason or f"the replica {request.rank} is not ready")

    async def _pool_part(
        self,
        rank: int,
        places: Sequence[int],
        requests: Sequence[EngineRequest],
        full: set[int],
        on_output: OnOutput,
    ) -> dict[int, EngineOutput]:
        """The outputs of some of the requests, by place. If the replica's queue is full, which is noted in `full`, they
        are those that it has computed."""
        finished: dict[int, EngineOutput] = {}

        def take(index: int, output: EngineOutput) -> None:
            finished[places[index]] = output
            on_output(places[index], output)

        try:
            found = await self._replicas[rank].pool([requests[place] for place in places], take)
        except QueueFull:
            full.add(rank)
            return finished
        return dict(zip(places, found, strict=True))

    @property
    def sleep_level(self) -> int:
        """Sleep level of the replica that sleeps least."""
        return min(replica.sleep_level for replica in self._replicas.values())

    @property
    def is_available(self) -> bool:
        return any(replica.is_available for replica in self._replicas.values())

    async def sleep(self, level: int, *, waits: bool = False) -> None:
        """Send all replicas to sleep."""
        await _all([replica.sleep(level, waits=waits) for replica in self._replicas.values()])

    async def wake_up(self) -> None:
        """Wake up all replicas."""
        await _all([replica.wake_up() for replica in self._replicas.values()])

    async def load_adapter(self, ref: AdapterRef) -> None:
        """Load it in all replicas."""
        await _all([replica.load_adapter(ref) for replica in self._replicas.values()])

    async def unload_adapter(self, digest: str) -> None:
        await _all([replica.unload_adapter(digest) for replica in self._replicas.values()])

    async def profile(self, *, is_start: bool) -> str:
        """Profile all replicas. Returns their files, separated by commas."""
        asked = [replica.profile(is_start=is_start) for replica in self._replicas.values()]
        results = await asyncio.gather(*asked, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return ", ".join(str(path) for path in results if path)

    def _available(self, rank: int | None, full: set[int]) -> dict[int, Reported]:
        """What the replicas report that may serve a request; `rank` is the one that it names."""
        asked = self._replicas if rank is None else {rank: self._replicas[rank]}
        found: dict[int, Reported] = {}
        ready = {rank for rank, replica in asked.items() if replica.state is EngineState.READY}
        for each, replica in asked.items():  # one that must be woken takes a request if no other can
            if each not in full and (each in ready if ready - full else replica.is_available):
                self._open(each, replica.info)
                found[each] = _reported(replica)
        return found

    def _open(self, rank: int, info: EngineInfo) -> None:
        if self._opened.get(rank) is not info:  # each start has its own EngineInfo
            self._opened[rank] = info
            self._router.open(rank, info.num_kv_tokens)


async def _together(calls: list[Coroutine[None, None, _Result]]) -> list[_Result]:
    """What all return. Raises the first failure, after the others were cancelled."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _all(calls: list[Coroutine[None, None, None]]) -> None:
    """Waits for all, and raises the first failure."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _reported(replica: StreamingClient) -> Reported:
    stats = replica.stats
    if not stats.num_blocks:  # none have arrived yet
        return Reported()
    num_free_tokens = stats.num_free_blocks * replica.info.num_kv_tokens // stats.num_blocks
    return Reported(stats.num_running + stats.num_waiting, num_free_tokens)


def _sum(found: list[EngineStats]) -> EngineStats:
    return EngineStats(
        num_running=sum(stats.num_running for stats in found),
        num_waiting=sum(stats.num_waiting for stats in found),
        num_free_blocks=sum(stats.num_free_blocks for stats in found),
        num_blocks=sum(stats.num_blocks for stats in found),
        prefix_queries=sum(stats.prefix_queries for stats in found),
        prefix_hits=sum(stats.prefix_hits for stats in found),
        store_queries=sum(stats.store_queries for stats in found),
        store_hits=sum(stats.store_hits for stats in found),
        store_failures=sum(stats.store_failures for stats in found),
        num_preemptions=sum(stats.num_preemptions for stats in found),
        num_steps=sum(stats.num_steps for stats in found),
        num_step_tokens=sum(stats.num_step_tokens for stats in found),
        num_deferred=sum(stats.num_deferred for stats in found),
        step_time_s=sum(stats.step_time_s for stats in found),
        running_adapters=_names(name for stats in found for name in stats.running_adapters),
        waiting_adapters=_names(name for stats in found for name in stats.waiting_adapters),
        drafts=_sum_drafts([stats.drafts for stats in found if stats.drafts is not None]),
    )


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _sum_drafts(found: list[DraftCounts]) -> DraftCounts | None:
    if not found:
        return None
    accepted = tuple(map(sum, zip(*(each.accepted for each in found), strict=True)))
    return DraftCounts(sum(each.drafts for each in found), sum(each.tokens for each in found), accepted)
