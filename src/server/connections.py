"""Connections over HTTP/1.1: hypercorn's protocol code between our sockets and an ASGI app.

hypercorn parses and frames; reading, timeouts and the end are ours, because of what hypercorn 0.18 does there:

- Its own shutdown awaits `Server.wait_closed()` first, which since Python 3.12 waits for every connection: one live
  stream and SIGTERM never ends the process (pgjones/hypercorn#308). Here the drain has a deadline and then cuts.
- Bytes that arrive behind a request stop its read loop, so the close behind them is never seen and the request runs to
  its last token for nobody. Here reading goes on while an earlier request is being answered.
- A client that stops reading holds its stream for ever, before and after the last byte. Here both are bounded.
- HTTP/2: a stream that is answered early ends its siblings (pgjones/hypercorn#329). Here only HTTP/1.1 is spoken.
- `Config.read_timeout` cuts healthy event streams, whose clients are silent: it stays unset. Slow bodies are timed in
  limits.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import h11
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.task_group import TaskGroup
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Request
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from ..logs import HTTP_LOGGER, TRACE

KEEP_ALIVE_S = 30.0  # also the time a client has for its request's headers
FLUSH_S = 1.0  # after the cut, for last error events to leave
LINGER_S = 2.0  # for a client to read why it was refused while it was still sending
READ_BYTES = 1 << 16
PENDING_BYTES = 1 << 20  # bytes read ahead of what the request being answered can take
logger = logging.getLogger(HTTP_LOGGER)


class Connections:
    """All connections, and how they end."""

    def __init__(
        self, app: Callable[..., Awaitable[None]], send_stall_timeout: float, max_incomplete_bytes: int
    ) -> None:
        self._app = ASGIWrapper(app)
        self._config = Config()
        self._config.keep_alive_timeout = KEEP_ALIVE_S
        self._config.h11_max_incomplete_size = max_incomplete_bytes
        self._config.include_server_header = False
        # Without bound, because at its bound hypercorn waits for an app that has already answered to read on, and the
        # connection of an early refusal never closes. An app reads, or answers and closes: nothing piles up.
        self._config.max_app_queue_size = 0
        self._config.errorlog = logger
        self._context = WorkerContext(None)
        self._send_stall_timeout = send_stall_timeout
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._is_cut = False

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "start_server runs its callback in a task"
        self._connections[task] = writer
        connection = _Connection(self._app, asyncio.get_running_loop(), self._config, self._context, {}, reader, writer)
        connection.send_stall_timeout = self._send_stall_timeout
        connection.peer = _peer(writer)
        # Wait for a client as soon as the kernel is full: its next event then holds all tokens that came meanwhile.
        writer.transport.set_write_buffer_limits(high=0)
        logger.debug("connection of %s opened", connection.peer)
        try:
            await _run(connection)
        except asyncio.CancelledError:
            if not self._is_cut:  # asyncio would log a connection that we cancelled as an error
                raise
        finally:
            del self._connections[task]
            logger.debug("connection of %s closed", connection.peer)

    async def drain(self, timeout_s: float, cut: asyncio.Event) -> None:
        """Close idle connections, let the others finish; returns when none is left, at the timeout, or at `cut`."""
        await self._context.terminated.set()
        waits = [asyncio.ensure_future(self._all_closed()), asyncio.ensure_future(cut.wait())]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def cut(self, end_streams: Callable[[], Awaitable[None]]) -> None:
        """End what is left: by its own error event if the client takes it in time, else by force."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await asyncio.gather(end_streams(), self._all_closed())
        self._is_cut = True
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


async def _run(connection: _Connection) -> None:
    try:
        await connection.run()
    except* (OSError, asyncio.IncompleteReadError):
        pass  # the client is gone
    except* Exception as group:
        logger.error("a connection failed", exc_info=group)


class _Connection(TCPServer):
    """One client's connection: reads ahead, and gives up on a client that does not read.

    A client that closes its writing half is taken to have left: over HTTP/1.1 the two cannot be told apart.
    """

    send_stall_timeout: float
    peer: str
    _is_closing = False
    _abort: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        sock = self.writer.get_extra_info("socket")
        try:
            client = parse_socket_addr(sock.family, sock.getpeername())
            server = parse_socket_addr(sock.family, sock.getsockname())
            async with TaskGroup(self.loop) as group:
                self._task_group = group
                self.protocol = _Protocol(  # type: ignore[assignment]
                    self.app,
                    self.config,
                    self.context,
                    group,
                    ConnectionState(self.state),
                    self.writer.get_extra_info("ssl_object") is not None,
                    client,
                    server,
                    self.protocol_send,
                )
                await self.idle_task.restart(group, self._idle_timeout)
                await self._read_data()
        finally:
            await self._close()

    async def _read_data(self) -> None:
        pending: deque[bytes] = deque()
        arrived, taken = asyncio.Event(), asyncio.Event()
        has_left = False

        async def feed() -> None:
            # Not only until it is cancelled: hypercorn swallows a cancellation that meets it while it closes, or while
            # it stops its idle timer because a request has begun.
            while not (self._is_closing or has_left):
                while pending and not (self._is_closing or has_left):
                    await self.protocol.handle(RawData(pending[0]))
                    pending.popleft()
                    taken.set()
                arrived.clear()
                if not (self._is_closing or has_left):
                    await arrived.wait()

        feeder = asyncio.ensure_future(feed())
        try:
            while True:
                data = await self.reader.read(READ_BYTES)
                if not data:
                    break
                logger.log(TRACE, "%d bytes from %s", len(data), self.peer)
                if self._is_closing:
                    continue  # lingering: thrown away
                pending.append(data)
                arrived.set()
                while sum(map(len, pending)) > PENDING_BYTES and not feeder.done():
                    # the only place where a client's close is not seen: a body that the app is not reading
                    taken.clear()
                    waiting = asyncio.ensure_future(taken.wait())
                    await asyncio.wait([feeder, waiting], return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
        except OSError:
            pass
        finally:
            has_left = True
            feeder.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await feeder
            await self.protocol.handle(Closed())

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Closed):
            await self._end()
            return
        if isinstance(event, RawData):
            logger.log(TRACE, "%d bytes to %s", len(event.data), self.peer)
            transport = self.writer.transport
            if not self.send_lock.locked() and not transport.is_closing():
                self.writer.write(event.data)
                if not transport.get_write_buffer_size():
                    return  # the kernel has it all: nothing to wait for, and most of what is sent goes this way
                event = RawData(data=b"")  # written already; what is left is to wait
        try:
            async with asyncio.timeout(self.send_stall_timeout):
                await super().protocol_send(event)
        except TimeoutError:
            logger.warning("connection of %s cut: it takes nothing (`server.send_stall_timeout`)", self.peer)
            self.writer.transport.abort()
            await self.protocol.handle(Closed())

    async def _end(self) -> None:
        """Close our side. A client that is still sending is read for a while: closed at once, the kernel would answer
        its bytes with a reset, and the refusal it was sent would be lost with it."""
        self._is_closing = True
        await self.idle_task.stop()
        if self.protocol.is_receiving and not self.reader.at_eof():  # type: ignore[attr-defined]
            with contextlib.suppress(OSError, RuntimeError):
                self.writer.write_eof()
            patience_s = LINGER_S
        else:
            self.writer.close()  # done when the client has taken what it was sent
            patience_s = self.send_stall_timeout
        if self._abort is None:
            self._abort = self.loop.call_later(patience_s, self.writer.transport.abort)

    async def _close(self) -> None:
        self._is_closing = True
        await self.idle_task.stop()
        self.writer.close()
        try:
            async with asyncio.timeout(self.send_stall_timeout):
                await self.writer.wait_closed()
        except TimeoutError:
            self.writer.transport.abort()
        except OSError:
            pass
        finally:
            if self._abort is not None:
                self._abort.cancel()


class _Protocol(H11Protocol):
    """HTTP/1.1 and nothing else: no upgrade to HTTP/2 or to a web socket."""

    @property
    def is_receiving(self) -> bool:
        """Whether the client has more of its request to send."""
        return self.connection.their_state is h11.SEND_BODY

    async def _check_protocol(self, event: h11.Request) -> None:
        return

    async def _create_stream(self, request: h11.Request) -> None:
        if not request.target.isascii():
            await self._send_error_response(400)
            await self.send(Closed())
            return
        self.stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        event: Any = Request(
            stream_id=STREAM_ID,
            headers=list(request.headers),
            http_version=request.http_version.decode(),
            method=request.method.decode("ascii").upper(),
            raw_path=request.target,
            state=self.connection_state,
        )
        await self.stream.handle(event)
        self.keep_alive_requests += 1
