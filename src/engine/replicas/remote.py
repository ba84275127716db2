"""RemoteReplicas: on node 0, accepts the replicas of other nodes. RemoteChild: one of them, as if it were started here.

A replica that ends, or whose node does, is waited for until it connects again; the server starts it again within the
same budget as one of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from ...config.exit_codes import EXIT_FAILED, EXIT_INVALID_CONFIGURATION
from ...logs import RareLogger
from ..cluster.fingerprint import Fingerprint
from ..cluster.gathering import MAX_JOIN_BYTES, NOT_UNDERSTOOD, CannotGather, reason_against
from ..cluster.limits import SILENCE_S, WAITING_LINE_S
from ..transport.messages import ExitReason, Message
from ..transport.rank_messages import CODEC, Alive, Failed, Join
from .connection import START, ReplicaConnection

logger = logging.getLogger(__name__)
rare = RareLogger(logger)


class RemoteReplicas:
    """Listens from the first `connected` until `close`, on one event loop."""

    def __init__(
        self,
        address: str,
        port: int,
        ranks: Iterable[int],
        fingerprint: Fingerprint,
        secret: str,
        silence_s: float = SILENCE_S,
    ) -> None:
        """ranks: of the replicas. secret: a hash (secret.py). silence_s: after which one is given up."""
        self._address, self._port, self._silence_s = address, port, silence_s
        self._fingerprint, self._secret = fingerprint, secret
        self._waiting: dict[int, ReplicaConnection | None] = dict.fromkeys(ranks)  # connected, and not in use
        self._in_use: dict[int, ReplicaConnection] = {}
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def connected(self, rank: int) -> ReplicaConnection:
        """Wait for a replica. Raises CannotGather."""
        await self._listen()
        async with self._changed:
            while (connection := self._waiting[rank]) is None or connection.ended.done():
                try:
                    async with asyncio.timeout(WAITING_LINE_S):
                        await self._changed.wait()
                except TimeoutError:
                    logger.warning("waiting for replica %d on %s:%d", rank, self._address, self._port)
            self._waiting[rank], self._in_use[rank] = None, connection
            return connection

    async def _listen(self) -> None:
        """Raises CannotGather."""
        async with self._opening:
            if self._server is not None:
                return
            self._address, self._port = await self._place()
            try:
                self._server = await asyncio.start_server(self._admit, self._address, self._port)
            except OSError as error:
                place = f"{self._address}:{self._port}"
                raise CannotGather(f"node 0 cannot listen on {place}: {error.strerror or error}") from None
            self._port = self._server.sockets[0].getsockname()[1]

    async def _place(self) -> tuple[str, int]:
        """Address and port to listen at; port 0 is any that is free."""
        return self._address, self._port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ReplicaConnection(reader, writer, self._silence_s)
        try:
            async with asyncio.timeout(SILENCE_S):
                join = CODEC.decode(await connection.read_frame(MAX_JOIN_BYTES))
            if not isinstance(join, Join):
                raise ValueError("not a replica")
            rank, exit_code = join.rank, EXIT_INVALID_CONFIGURATION
            reason = self._reason_against(join)
            if not reason and (reason := self._earlier(rank)):
                exit_code = EXIT_FAILED  # it may come again
        except (OSError, EOFError, TimeoutError):
            connection.close()  # a probe
            return
        except (ValueError, TypeError) as error:
            host, *_ = writer.get_extra_info("peername")
            rare.log(logging.WARNING, NOT_UNDERSTOOD, host, error)
            connection.close()
            return
        connection.send_frame(CODEC.encode(Failed(reason, exit_code) if reason else Alive()))
        if reason:
            logger.error("replica %d of %s was refused: %s", rank, join.host, reason)
            await connection.flush()
            connection.close()
            return
        task = asyncio.create_task(connection.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        async with self._changed:
            self._waiting[rank] = connection
            self._changed.notify_all()

    def _reason_against(self, join: Join) -> str:
        if reason := reason_against(join, self._fingerprint, self._secret):
            return reason
        return "" if join.rank in self._waiting else f"replica {join.rank} is not one that runs on another node"

    def _earlier(self, rank: int) -> str:
        """A connection of this replica; if it was cut, its end is noticed soon."""
        for known in (self._waiting[rank], self._in_use.get(rank)):
            if known is not None and not known.ended.done():
                return f"replica {rank} has connected already, from {known.peer}"
        return ""


class RemoteChild:
    """One start of a replica on another node; the same methods as EngineChild."""

    def __init__(self, replicas: RemoteReplicas, rank: int, receive: Callable[[Message], None]) -> None:
        self._replicas, self._rank, self._receive = replicas, rank, receive
        self._connection: ReplicaConnection | None = None
        self._exit_reason: ExitReason | None = None
        self.paths: list[Path] = []  # it has no sockets on this machine
        self.pid: int | None = None

    async def start(self) -> None:
        """Waits for its node. Raises CannotGather."""
        while True:  # one that was closed before it was accepted is none
            connection = await self._replicas.connected(self._rank)
            heard = asyncio.ensure_future(connection.heard.wait())
            try:
                await asyncio.wait((heard, connection.ended), return_when=asyncio.FIRST_COMPLETED)
            finally:
                heard.cancel()
            if not connection.ended.done():
                break
        self._connection, connection.receive = connection, self._take
        self._connection.send_frame(START)

    def send(self, message: Message) -> None:
        if self._connection is not None:
            self._connection.send(message)

    async def ended(self) -> ExitReason:
        assert self._connection is not None, "start comes first"
        reason = await asyncio.shield(self._connection.ended)
        where = f"replica {self._rank} on {self._connection.peer}"
        if self._exit_reason is not None:
            return ExitReason(self._exit_reason.error, f"{where}: {self._exit_reason.message}",
                              self._exit_reason.exit_code)  # fmt: skip
        return ExitReason("ReplicaLost", f"{where}: {reason}")

    async def stop(self, grace_s: float = 1.0) -> None:
        """Close the connection: the node stops the engine, and connects again."""
        if self._connection is not None:
            await self._connection.flush()
            self._connection.close()

    def _take(self, message: Message) -> None:
        if isinstance(message, ExitReason):
            self._exit_reason = message
        else:
            self._receive(message)
