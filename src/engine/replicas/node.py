"""ReplicaNode: the replicas of another node than 0: connects each to the server of node 0, and runs its engine.

Each has its own connection, through which the messages of its engine process go. When node 0 ends or is silent,
the engine is stopped, and the replica connects again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...config.exit_codes import EXIT_INVALID_CONFIGURATION
from ..client.child import EngineChild
from ..client.process import COMMAND
from ..cluster.fingerprint import Fingerprint
from ..cluster.headless_node import NodeState
from ..cluster.limits import SILENCE_S, WAITING_LINE_S
from ..transport.messages import ExitReason, Message, Ready
from ..transport.rank_messages import CODEC, Alive, Failed, Join
from .connection import ReplicaConnection

_RETRY_S = 0.5
_MAX_REASON_BYTES = 1 << 16
logger = logging.getLogger(__name__)


class _Refused(Exception):
    """Node 0 refuses this replica: it is of another deployment, model or version."""


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    config: str  # the Resolved as JSON
    environment: Mapping[str, str]
    command: Sequence[str] = COMMAND


class ReplicaNode:
    def __init__(
        self,
        replicas: Mapping[int, ReplicaStart],
        address: str,
        port: int,
        fingerprint: Fingerprint,
        secret: str,
        silence_s: float = SILENCE_S,
    ) -> None:
        """replicas: by rank. address, port: of node 0. secret: a hash. silence_s: of node 0, after which it is given
        up."""
        self._replicas = dict(replicas)
        self._address, self._port, self._silence_s = address, port, silence_s
        self._fingerprint, self._secret = fingerprint, secret
        self._children: dict[int, EngineChild] = {}
        self._ready: set[int] = set()
        self.reason = ""  # of the last end

    @property
    def state(self) -> NodeState:
        return NodeState.READY if len(self._ready) == len(self._replicas) else NodeState.STARTING

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the engines, by rank."""
        return {rank: child.pid for rank, child in self._children.items() if child.pid is not None}

    async def run(self) -> int:
        """Run the replicas until the task is cancelled, or they are refused. Returns the exit code of the command."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for rank in self._replicas:
                    tasks.create_task(self._keep(rank))
        except* _Refused as refused:
            self.reason = str(refused.exceptions[0])
            logger.critical("%s", self.reason)
        return EXIT_INVALID_CONFIGURATION

    async def _keep(self, rank: int) -> None:
        """Connect and serve, again and again. Raises _Refused."""
        now = asyncio.get_running_loop().time
        line_at = now() - WAITING_LINE_S
        while True:
            try:
                connection = await self._join(rank)
            except (OSError, EOFError, ValueError) as error:
                if now() - line_at >= WAITING_LINE_S:
                    line_at = now()
                    place = f"{self._address}:{self._port}"
                    logger.warning("replica %d waits for node 0 at %s: %s", rank, place, error or "no answer")
                await asyncio.sleep(_RETRY_S)
                continue
            await self._serve(rank, connection)

    async def _join(self, rank: int) -> ReplicaConnection:
        """Raises _Refused, and OSError, EOFError or ValueError while node 0 is not there."""
        async with asyncio.timeout(SILENCE_S):  # here as elsewhere: wait_for may swallow a cancellation on Python 3.11
            reader, writer = await asyncio.open_connection(self._address, self._port)
        connection = ReplicaConnection(reader, writer, self._silence_s)
        try:
            join = Join(rank, socket.gethostname(), dict(self._fingerprint), self._secret)
            connection.send_frame(CODEC.encode(join))
            async with asyncio.timeout(SILENCE_S):
                answer = await connection.read_frame(_MAX_REASON_BYTES)
            match CODEC.decode(answer):
                case Alive():
                    return connection
                case Failed(reason, exit_code) if exit_code == EXIT_INVALID_CONFIGURATION:
                    raise _Refused(f"node 0 refuses replica {rank}: {reason}")
                case Failed(reason):
                    raise ConnectionRefusedError(reason)
                case _:
                    raise ValueError("the answer of node 0 is not understood")
        except BaseException:
            connection.close()
            raise

    async def _serve(self, rank: int, connection: ReplicaConnection) -> None:
        """Run an engine when node 0 asks for it, until one of them ends."""
        running = asyncio.create_task(connection.run())
        started = asyncio.create_task(connection.started.wait())
        child: EngineChild | None = None
        try:
            await asyncio.wait((started, running), return_when=asyncio.FIRST_COMPLETED)
            if not started.done():
                return
            child = self._children[rank] = self._child(rank, connection)
            connection.receive = child.send
            await child.start()
            ended = asyncio.ensure_future(child.ended())
            await asyncio.wait((ended, running), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                self.reason = f"replica {rank} has lost node 0: {connection.ended.result()}"
                logger.warning("%s; its engine is stopped", self.reason)
                ended.cancel()
            else:
                self._report(rank, connection, ended.result())
        except OSError as error:
            self._report(rank, connection, ExitReason(type(error).__name__, f"cannot start the engine: {error}", 4))
        finally:
            self._ready.discard(rank)
            if child is not None:
                await child.stop()
            self._children.pop(rank, None)
            started.cancel()
            await connection.flush()
            connection.close()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    def _report(self, rank: int, connection: ReplicaConnection, reason: ExitReason) -> None:
        self.reason = f"replica {rank}: {reason.message}"
        logger.error("%s", self.reason)
        connection.send(reason)

    def _child(self, rank: int, connection: ReplicaConnection) -> EngineChild:
        def pass_on(message: Message) -> None:
            if isinstance(message, Ready):
                self._ready.add(rank)
            connection.send(message)

        start = self._replicas[rank]
        return EngineChild(start.command, start.config, pass_on, start.environment)
