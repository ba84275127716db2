"""One client's connection over HTTP/1.1: hypercorn's protocol code, with our own reading, time limits and closing.

hypercorn parses requests and frames responses. The rest is overridden because of what hypercorn 0.18 does:

- Bytes that arrive after a request block its read loop, so it does not see the client's close, and the request runs to
  its last token for a client that has left. Here reading goes on while an earlier request is being answered.
- A connection whose client has closed it is kept, with its file descriptor, until `Config.keep_alive_timeout`: the
  `TaskGroup` waits for the idle timer. Here it is released at once.
- A client that stops reading keeps its stream open without limit, before and after the last byte. Here both have a
  time limit.
- A body in chunks of one byte holds the event loop for as long as its bytes last: each read of 64 KiB is handled
  without a pause. Here other tasks run after every twenty parts.
- HTTP/2: a stream that is answered early ends the other streams of its connection (pgjones/hypercorn#329). Here only
  HTTP/1.1 is spoken.
- `Config.read_timeout` cuts healthy event streams, whose clients send nothing: it stays unset. limits.py limits the
  time of a request body.

What this module relies on (checked by tests/server/test_hypercorn_contract.py, also with the newest release):

- `TCPServer` stores its arguments as attributes and creates `send_lock` and `idle_task`. Its `protocol_send` writes and
  drains `RawData` under `send_lock`, and stops or restarts `idle_task` for `Updated`. Its `_idle_timeout` waits for
  `Config.keep_alive_timeout` or `WorkerContext.terminated`, then calls `_initiate_server_close`. Overridden: `run`,
  `_read_data`, `_idle_timeout`, `protocol_send`, `_close`.
- `H11Protocol` takes `RawData` and `Closed` in `handle`, and sends `RawData`, `Updated` and `Closed` to its `send`
  argument. For each request it sends `Updated(idle=False)`, then awaits `_check_protocol` and `_create_stream`, both
  overridden. `handle(RawData)` does not return while a request waits for the response to an earlier one. `connection`
  is the `h11.Connection`. After a response it is ready for the next request, or sends `Closed` if the client asked for
  it, the request body was not read to its end, or `WorkerContext.terminated` is set.
- `H11Protocol` awaits `HTTPStream.handle(Body)` for each part of a body. `HTTPStream.handle(Request)` starts the app
  as a task of the `TaskGroup`; `StreamClosed` reaches the app as `http.disconnect`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import Any

import h11
from hypercorn.asyncio.task_group import TaskGroup
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, Request
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from ...logs import HTTP_LOGGER, TRACE
from .turns import Turns

FIRST_REQUEST_S = 1.0  # at shutdown, for a new connection, whose request may be under way
LINGER_S = 2.0  # how long to read on from a client that was refused while it was still sending
READ_BYTES = 1 << 16
PENDING_BYTES = 1 << 17  # maximum number of bytes read ahead of the request that is being answered
PARTS_PER_TURN = 20  # of a body that are handled before other tasks run: about a millisecond
logger = logging.getLogger(HTTP_LOGGER)


class Connection(TCPServer):
    """Reads ahead of the request that is being answered, and closes on a client that stops reading.

    A client that closes its writing half counts as gone: over HTTP/1.1 the server cannot distinguish the two.
    """

    send_stall_timeout: float
    peer: str
    turns: Turns  # taken to begin with a request: hundreds can arrive in the same moment
    _is_closing = False
    _abort: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        sock = self.writer.get_extra_info("socket")
        try:
            client = parse_socket_addr(sock.family, sock.getpeername())
            server = parse_socket_addr(sock.family, sock.getsockname())
            async with TaskGroup(self.loop) as group:
                self._task_group = group
                self.protocol = _Http11Protocol(  # type: ignore[assignment]
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
                await self._release()  # before the group waits for the app, and for the idle timer
        finally:
            await self._close()

    async def _read_data(self) -> None:
        pending: deque[bytes] = deque()
        arrived, consumed = asyncio.Event(), asyncio.Event()
        has_left = False

        async def feed() -> None:
            # The flags are checked besides cancellation: hypercorn suppresses a cancellation that arrives while it
            # closes, or while it stops its idle timer because a request has begun.
            while not (self._is_closing or has_left):
                while pending and not (self._is_closing or has_left):
                    if not self.protocol.is_receiving:  # type: ignore[attr-defined]
                        await self.turns.take()
                    await self.protocol.handle(RawData(pending[0]))
                    pending.popleft()
                    consumed.set()
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
                    continue  # lingering: the bytes are discarded
                pending.append(data)
                arrived.set()
                while sum(map(len, pending)) > PENDING_BYTES and not feeder.done():
                    # The only state in which a client's close is not seen: reading has stopped at the limit.
                    consumed.clear()
                    waiting = asyncio.ensure_future(consumed.wait())
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

    async def _idle_timeout(self) -> None:
        """Close the connection if no request begins; one that does cancels this task."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.keep_alive_timeout):  # wait_for can suppress the cancellation
                await self.context.terminated.wait()
                if not self.protocol.keep_alive_requests:  # type: ignore[attr-defined]
                    await asyncio.sleep(FIRST_REQUEST_S)
        await asyncio.sleep(0)  # a request may have begun in the same turn as the shutdown
        await asyncio.shield(self._initiate_server_close())

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Closed):
            await self._end()
            return
        if isinstance(event, Updated) and self._is_closing:
            return  # the idle timer has been stopped, and would hold the connection open for its whole time
        if isinstance(event, RawData):
            logger.log(TRACE, "%d bytes to %s", len(event.data), self.peer)
            transport = self.writer.transport
            if transport.is_closing():
                await asyncio.sleep(0)  # an app that sends without end must let other tasks run
                return
            if not self.send_lock.locked():
                self.writer.write(event.data)
                if not transport.get_write_buffer_size():
                    return  # the usual case: the kernel has taken everything, so there is nothing to wait for
                event = RawData(data=b"")  # already written: the call below only waits until it has been sent
        try:
            async with asyncio.timeout(self.send_stall_timeout):
                await super().protocol_send(event)
        except TimeoutError:
            logger.warning(
                "connection of %s cut: the client has stopped reading (`server.send_stall_timeout`)", self.peer
            )
            self.writer.transport.abort()
            await self.protocol.handle(Closed())

    async def _end(self) -> None:
        """Close our side of the connection.

        If the client is still sending, its bytes are read and discarded for a while. After an immediate close the
        kernel would answer them with a reset, and the client would lose the error response it was sent.
        """
        self._is_closing = True
        await self.idle_task.stop()
        if self.protocol.is_receiving and not self.reader.at_eof():  # type: ignore[attr-defined]
            with contextlib.suppress(OSError, RuntimeError):
                self.writer.write_eof()
            limit_s = LINGER_S
        else:
            self.writer.close()  # completes when the client has read everything it was sent
            limit_s = self.send_stall_timeout
        if self._abort is None:
            self._abort = self.loop.call_later(limit_s, self.writer.transport.abort)

    async def _release(self) -> None:
        """Free the file descriptor as soon as everything that was sent has left."""
        self._is_closing = True
        await self.idle_task.stop()
        self.writer.close()

    async def _close(self) -> None:
        await self._release()
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


class _Http11Protocol(H11Protocol):
    """HTTP/1.1 only: no upgrade to HTTP/2 or to a web socket."""

    @property
    def is_receiving(self) -> bool:
        """Whether the request body has not arrived completely."""
        return self.connection.their_state is h11.SEND_BODY

    async def _check_protocol(self, event: h11.Request) -> None:
        return

    async def _create_stream(self, request: h11.Request) -> None:
        if not request.target.isascii():
            await self._send_error_response(400)
            await self.send(Closed())
            return
        self.stream = _Stream(
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


class _Stream(HTTPStream):
    """Lets other tasks run while a body arrives in many small parts."""

    _num_parts = 0

    async def handle(self, event: StreamEvent) -> None:
        await super().handle(event)
        if isinstance(event, Body):
            self._num_parts += 1
            if self._num_parts % PARTS_PER_TURN == 0:
                await asyncio.sleep(0)
