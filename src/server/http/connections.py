"""All connections of the server, from their establishment to their end at shutdown.

hypercorn's own shutdown first awaits `Server.wait_closed()`, which since Python 3.12 waits for every connection: with
one open stream, SIGTERM never ends the process (pgjones/hypercorn#308). Here draining has a deadline, after which the
remaining connections are cut. listener.py accepts connections; what happens on one is in connection.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config

from ...logs import HTTP_LOGGER
from .connection import Connection
from .turns import Turns

KEEP_ALIVE_S = 30.0  # also the time limit for the headers of a request
FLUSH_S = 1.0  # for the last error events to be sent when connections are cut
logger = logging.getLogger(HTTP_LOGGER)


class Connections:
    def __init__(
        self, app: Callable[..., Awaitable[None]], send_stall_timeout: float, max_incomplete_bytes: int
    ) -> None:
        self._app = ASGIWrapper(app)
        self._config = Config()
        self._config.keep_alive_timeout = KEEP_ALIVE_S
        self._config.h11_max_incomplete_size = max_incomplete_bytes
        self._config.include_server_header = False
        # Unlimited: at a limit, hypercorn would wait for an app that has already answered to go on reading, and the
        # connection of an early refusal would never close. An app reads, or answers and closes: the queue stays short.
        self._config.max_app_queue_size = 0
        self._config.errorlog = logger
        self._context = WorkerContext(None)
        self._send_stall_timeout = send_stall_timeout
        self._turns = Turns()
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._connections[task] = writer
        connection = Connection(self._app, asyncio.get_running_loop(), self._config, self._context, {}, reader, writer)
        connection.send_stall_timeout = self._send_stall_timeout
        connection.peer = _peer(writer)
        connection.turns = self._turns
        # Wait for the client as soon as the kernel's buffer is full: the next event then holds all tokens since.
        writer.transport.set_write_buffer_limits(high=0)
        logger.debug("connection of %s opened", connection.peer)
        try:
            await _run(connection)
        finally:
            del self._connections[task]
            logger.debug("connection of %s closed", connection.peer)

    async def drain(self, timeout_s: float, cut: asyncio.Event) -> None:
        """Close idle connections and wait for the others; returns when all are closed, at the timeout, or at `cut`."""
        await self._context.terminated.set()
        waits = [asyncio.ensure_future(self._all_closed()), asyncio.ensure_future(cut.wait())]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def cut(self, end_streams: Callable[[], Awaitable[None]]) -> None:
        """End the remaining connections: `end_streams` sends error events, then after `FLUSH_S` they are aborted."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await asyncio.gather(end_streams(), self._all_closed())
        for writer in self._connections.values():
            writer.transport.abort()
        for task in self._connections:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S / 4):
                await self._all_closed()

    async def _all_closed(self) -> None:
        while self._connections:
            await asyncio.wait(list(self._connections))


def _peer(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "a local process"


async def _run(connection: Connection) -> None:
    try:
        await connection.run()
    except* (OSError, asyncio.IncompleteReadError):
        pass  # the client has left
    except* Exception as group:
        logger.error("a connection failed", exc_info=group)
