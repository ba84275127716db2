"""RayReplicas: on the machine with the API, replicas whose machines Ray chooses.

Ray runs an actor for each replica. The actor does what a headless node does without Ray: it starts the engine, which
connects to the server here. So a replica is in use when two things have happened:

    server                                   machine that Ray has chosen
    connected(3): starts an actor       ->   ReplicaActor.run(rank=3) starts the engine
    a connection, which `connected` returns   <-   the engine connects

An actor whose connection was cut connects again. An actor that has ended, or does not come back, is replaced when the
server starts its replica again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from typing import Any

from ...config import Resolved, read_machine_spec
from ..cluster.fingerprint import fingerprint
from ..cluster.limits import silence_of
from ..cluster.ray_places import CannotUseRay, RayPlaces, bundle_of, loss, own_signals
from ..cluster.secret import hash_of
from .connection import ReplicaConnection
from .daemon_thread import DaemonThread
from .node import ReplicaNode, ReplicaStart
from .remote import RemoteReplicas

_LEAVE_S = 10.0  # for Ray to take the actors and their places back
logger = logging.getLogger(__name__)


class ReplicaActor:
    """Runs one replica on the machine of the actor."""

    def run(self, resolved: str, rank: int, address: str, port: int, secret: str) -> str:
        """Run the replica until the server refuses it. Returns why. address, port: of the server."""
        values = Resolved.model_validate_json(resolved)
        own = values.model_copy(update={"machine": read_machine_spec()}).replica(rank)
        environment = {name: value for name, value in os.environ.items() if name not in values.secret_variables}
        starts = {rank: ReplicaStart(own.model_dump_json(), environment)}
        silence_s = silence_of(values.parallel)
        node = ReplicaNode(starts, address, port, fingerprint(values), hash_of(secret), silence_s)
        asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())  # Ray's starts no process in a new group
        asyncio.run(node.run())
        return f"ended: {node.reason}"


class RayReplicas(RemoteReplicas):
    """Connects to Ray when the first replica is wanted. `close` ends the actors, and a Ray that was started here."""

    def __init__(self, resolved: Resolved, report: Callable[[str], None]) -> None:
        """report: called with what this waits for."""
        self._key = secrets.token_hex(16)  # by which the server recognises its own actors
        silence_s = silence_of(resolved.parallel)
        super().__init__("", 0, resolved.topology.remote_replicas, fingerprint(resolved), hash_of(self._key), silence_s)
        self._return_s = 2 * silence_s  # for an actor that has lost the server, to stop its engine and to connect again
        self._resolved = resolved
        self._report = report
        # One thread as long as this object: the processes of Ray end with the thread that has started them.
        self._thread = DaemonThread("ray")
        self._places: RayPlaces | None = None
        self._ends: dict[int, asyncio.Future[str]] = {}  # of the actors, by rank: how each has ended
        self._is_closed = False

    async def connected(self, rank: int) -> ReplicaConnection:
        """Starts an actor, unless there is one that connects again. Raises CannotGather or CannotUseRay."""
        await self._listen()
        joining = asyncio.ensure_future(super().connected(rank))
        try:
            while not joining.done():
                end = self._ends.get(rank)
                if end is None or end.done():
                    await self._run_new_actor(rank, joining)
                else:
                    await self._wait_for_return(rank, joining, end)
            connection = await joining
        finally:
            joining.cancel()
        logger.info("replica %d runs on %s, in an actor of Ray", rank, connection.peer)
        return connection

    async def _run_new_actor(self, rank: int, joining: asyncio.Future[ReplicaConnection]) -> None:
        """Start an actor, and wait until its replica connects. Raises CannotUseRay if the actor ends before."""
        end = self._ends[rank] = await self._start(rank)
        await asyncio.wait((joining, end), return_when=asyncio.FIRST_COMPLETED)
        if not joining.done():
            raise CannotUseRay(f"replica {rank} (an actor of Ray) {end.result()}")

    async def _wait_for_return(
        self, rank: int, joining: asyncio.Future[ReplicaConnection], end: asyncio.Future[str]
    ) -> None:
        """Wait until the replica connects again or its actor has ended. An actor that does neither is forgotten."""
        done, _ = await asyncio.wait((joining, end), timeout=self._return_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            logger.warning("replica %d: its actor of Ray is silent, and is replaced", rank)
            del self._ends[rank]

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for end in self._ends.values():
            end.cancel()
        leaving = asyncio.ensure_future(self._thread.run(self._leave))
        done, _ = await asyncio.wait((leaving,), timeout=_LEAVE_S)
        if not done:
            logger.warning("Ray does not answer; the server ends without it")
        self._thread.close()
        await super().close()

    async def _place(self) -> tuple[str, int]:
        loop = asyncio.get_running_loop()

        def report(what: str) -> None:
            loop.call_soon_threadsafe(self._report, what)

        with own_signals():
            await self._thread.run(self._enter, report)
        assert self._places is not None, "it is connected"
        return self._places.address, 0

    def _enter(self, report: Callable[[str], None]) -> None:
        """Reserve places for all replicas, in the thread."""
        self._places = RayPlaces("parallel.data_parallel_backend: ray", report)
        topology = self._resolved.topology
        bundle = bundle_of(self._resolved, topology.num_ranks)
        try:
            self._places.reserve(bundle, topology.num_on_ray, is_wanted=lambda: not self._is_closed)
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        """Release the places and end Ray, in the thread."""
        if self._places is not None:
            import ray

            self._places.close()
            self._places = None
            ray.shutdown()

    async def _start(self, rank: int) -> asyncio.Future[str]:
        """Start an actor. Returns how it ends, when it does."""
        assert self._places is not None, "it is connected"
        index = self._resolved.topology.remote_replicas.index(rank)
        arguments = (self._resolved.model_dump_json(), rank, self._address, self._port, self._key)
        running = await self._thread.run(self._places.run, index, ReplicaActor, f"replica {rank}", *arguments)
        return asyncio.ensure_future(_end_of(running, rank))


async def _end_of(running: Any, rank: int) -> str:
    """How an actor has ended. running: the reference of its call."""
    from ray.exceptions import RayError

    try:
        how = str(await asyncio.wrap_future(running.future()))
    except RayError as error:
        how = loss(error)
    logger.error("replica %d: its actor of Ray %s", rank, how)
    return how
