"""RayReplicas: on the machine with the API, replicas whose machines Ray chooses.

An actor is to Ray what a headless node is to a supervisor: it runs the engine of one replica, which connects to the
server as engines of other machines do. An actor that has ended is replaced when the server starts its replica again.
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
        self._key = secrets.token_hex(16)
        ranks, silence_s = resolved.topology.remote_replicas, silence_of(resolved.parallel)
        super().__init__("", 0, ranks, fingerprint(resolved), hash_of(self._key), silence_s)
        self._return_s = 2 * silence_s  # for an actor that has lost the server, to stop its engine and to connect again
        self._resolved, self._report = resolved, report
        self._config = resolved.model_dump_json()
        # One thread as long as this object: the processes of Ray end with the thread that has started them.
        self._thread = DaemonThread("ray")
        self._places: RayPlaces | None = None
        self._ends: dict[int, asyncio.Future[str]] = {}  # of the actors, by rank
        self._is_closed = False

    async def connected(self, rank: int) -> ReplicaConnection:
        """Starts an actor, unless there is one that connects again. Raises CannotGather or CannotUseRay."""
        await self._listen()
        joining = asyncio.ensure_future(super().connected(rank))
        try:
            while not joining.done():
                is_new = rank not in self._ends or self._ends[rank].done()
                if is_new:
                    self._ends[rank] = await self._start(rank)
                actor, limit_s = self._ends[rank], None if is_new else self._return_s
                done, _ = await asyncio.wait((joining, actor), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    logger.warning("replica %d: its actor of Ray is silent, and is replaced", rank)
                    del self._ends[rank]
                elif is_new and not joining.done():
                    raise CannotUseRay(f"replica {rank} (an actor of Ray) {actor.result()}")
            connection = await joining
        finally:
            joining.cancel()
        logger.info("replica %d runs on %s, in an actor of Ray", rank, connection.peer)
        return connection

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for end in self._ends.values():
            end.cancel()
        leaving = asyncio.ensure_future(self._thread.run(self._leave))
        if not (await asyncio.wait((leaving,), timeout=_LEAVE_S))[0]:
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
        self._places = places = RayPlaces("parallel.data_parallel_backend: ray", report)
        topology = self._resolved.topology
        bundle = bundle_of(self._resolved, topology.num_ranks)
        try:
            places.reserve(bundle, topology.num_on_ray, is_wanted=lambda: not self._is_closed)
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
        """The end of a new actor."""
        assert self._places is not None, "it is connected"
        index = self._resolved.topology.remote_replicas.index(rank)
        name, arguments = f"replica {rank}", (self._config, rank, self._address, self._port, self._key)
        running = await self._thread.run(self._places.run, index, ReplicaActor, name, *arguments)
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
