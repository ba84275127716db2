"""Listener: accepts the connections of one socket, within the limits of `Admission`.

It replaces asyncio's server. When no file descriptors are left, that one logs a line and sets a timer for each attempt
of its backlog, thousands a second, and occupies a core until long after; and it has no limit of connections.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl

from ...logs import HTTP_LOGGER, RareLogger
from ..protocol.errors import ApiError, closing, unavailable
from ..protocol.json import dump
from .admission import Admission, Reached, client_of
from .connection import READ_BYTES
from .connections import Connections

BACKLOG = 1024  # connections that the kernel holds until they are accepted
ACCEPTED_PER_TURN = 64  # before other tasks of the event loop run
PAUSE_S = 0.1  # after a failed accept, before the next one
HANDSHAKE_S = 10.0  # time limit of a TLS handshake
TLS_SHUTDOWN_S = 5.0  # time limit of a TLS shutdown; a client that does not answer it would delay the exit
REFUSAL_S = 2.0  # time that a refused client has to send its request and to read the response
MAX_REFUSALS = 64  # refused clients that get a response at the same time; others are closed at once
LOG_INTERVAL_S = 60.0  # between two lines with the same cause
logger = logging.getLogger(HTTP_LOGGER)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Listener:
    """Listens from its creation until `close`. Raises OSError if another socket listens on the address.

    sock: bound; closed by `close`.
    tls: None is plain HTTP.
    is_shared: whether other processes accept connections of the socket too.
    """

    def __init__(
        self,
        sock: socket.socket,
        connections: Connections,
        admission: Admission,
        tls: ssl.SSLContext | None = None,
        *,
        is_shared: bool = False,
    ) -> None:
        self._sock = sock
        self._connections = connections
        self._admission = admission
        self._tls = tls
        # One process would else accept all connections of a burst, and serve them alone.
        self._accepted_per_turn = 1 if is_shared else ACCEPTED_PER_TURN
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[None]] = set()  # tasks of connections that are not established yet
        self._refusals: set[asyncio.Task[None]] = set()
        self._arriving = 0  # accepted connections that are not established yet
        self._resuming: asyncio.TimerHandle | None = None
        self._logs: dict[str, RareLogger] = {}  # by cause
        sock.listen(BACKLOG)
        sock.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        self._loop.add_reader(self._sock, self._accept)

    async def stop(self) -> None:
        """Accept the connections that wait in the kernel, which would else reset them, and then no more."""
        if self._tls is None:  # a handshake takes too long
            self._accept(BACKLOG)
            self._stop_listening()
            while self._arriving:  # noqa: ASYNC110 (a few turns of the event loop)
                await asyncio.sleep(0)
        self.close()

    def close(self) -> None:
        """Accept no more connections. Established ones continue. May be called more than once."""
        self._stop_listening()
        for task in self._starting | self._refusals:
            task.cancel()

    def _stop_listening(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._sock.close()

    def _accept(self, at_most: int | None = None) -> None:
        for _ in range(at_most or self._accepted_per_turn):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            sock.setblocking(False)
            client = client_of(address)
            if reached := self._admission.enter(client):
                self._refuse(sock, client, reached)
            else:
                self._arriving += 1
                self._loop.create_task(self._serve(sock, client))

    def _pause(self, error: OSError) -> None:
        """Leave new connections to the kernel for a while: without descriptors the socket stays readable."""
        hint = ""
        if error.errno in (errno.EMFILE, errno.ENFILE):
            hint = "; raise the limit of open files (`ulimit -n`, LimitNOFILE of systemd)"
        self._log(logging.ERROR, "accept", f"new connections wait, they cannot be accepted: {error.strerror}{hint}")
        self._loop.remove_reader(self._sock)
        self._resuming = self._loop.call_later(PAUSE_S, self._listen)

    async def _serve(self, sock: socket.socket, client: str) -> None:
        try:
            try:
                streams = await self._establish(sock)
            finally:
                self._arriving -= 1
            if streams is not None:
                await self._connections.serve(*streams)
        finally:
            self._admission.leave(client)

    async def _establish(self, sock: socket.socket) -> Streams | None:
        """The connection after the TLS handshake, if any; None if that fails, or at `close`."""
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        limits = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": TLS_SHUTDOWN_S} if self._tls else {}
        task = asyncio.current_task()
        assert task is not None
        self._starting.add(task)
        try:
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, sock, ssl=self._tls, **limits)
        except (OSError, asyncio.CancelledError) as error:  # OSError: includes ssl.SSLError and TimeoutError
            logger.debug("a connection was not established: %s", error)
            sock.close()
            return None
        finally:
            self._starting.discard(task)
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    def _refuse(self, sock: socket.socket, client: str, limit: Reached) -> None:
        message = f"the limit of open connections of {limit.of_whom} is {limit.num_open} (`{limit.option}`)"
        self._log(logging.WARNING, limit.option, f"a connection of {client or 'a local process'} is refused: {message}")
        if self._tls is not None or len(self._refusals) >= MAX_REFUSALS:  # a handshake costs more than the answer
            sock.close()
            return
        error = closing(unavailable(message, code="too_many_connections", retry_after_s=1))
        task = self._loop.create_task(self._answer(sock, _response(error)))
        self._refusals.add(task)
        task.add_done_callback(self._refusals.discard)

    async def _answer(self, sock: socket.socket, response: bytes) -> None:
        """Send the response to whatever the client sends first, then close.

        Not earlier: clients do not expect a response without a request. Not closed at once after it: the
        kernel would answer the other bytes of the client with a reset, and the response would be lost.
        """
        streams = await self._establish(sock)
        if streams is None:
            return
        reader, writer = streams
        try:
            async with asyncio.timeout(REFUSAL_S):
                if await reader.read(READ_BYTES):
                    writer.write(response)
                    writer.write_eof()
                    while await reader.read(READ_BYTES):
                        pass
        except (OSError, asyncio.CancelledError):  # OSError: the client has left, or TimeoutError
            pass
        finally:
            writer.transport.abort()

    def _log(self, level: int, cause: str, message: str) -> None:
        if cause not in self._logs:
            self._logs[cause] = RareLogger(logger, LOG_INTERVAL_S, self._loop.time)
        self._logs[cause].log(level, "%s", message)


def _response(error: ApiError) -> bytes:
    body = dump(error.body)
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {error.status} \r\n{head}\r\n".encode("latin-1") + body
