"""EngineConnection: the two sockets between an engine process and one of its clients: messages, and heartbeats."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from pathlib import Path

import zmq
import zmq.asyncio

from ..transport.messages import Hello, Message
from ..transport.records import WireError
from ..transport.wire import decode, encode

CONNECT_LIMIT_MS = 10_000
LAST_MESSAGES_MS = 100  # after the process has ended: its last messages may still be in the socket
MESSAGES_PER_TURN = 8  # read before other tasks of the event loop run
logger = logging.getLogger(__name__)


class EngineConnection:
    def __init__(self, receive: Callable[[Message], None]) -> None:
        """receive: called with each message of the engine, on the event loop."""
        self._receive = receive
        self._context = zmq.asyncio.Context()
        self._readers: list[asyncio.Task[None]] = []

    async def open(self, for_messages: Path, for_heartbeats: Path) -> None:
        """Connect and say Hello. Raises OSError."""
        try:
            self._socket = await self._connected(zmq.DEALER, for_messages)
            self._heartbeats = await self._connected(zmq.SUB, for_heartbeats)
        except zmq.ZMQError as error:  # not an OSError, but caused by one, such as no file descriptors left
            raise OSError(error.errno, str(error)) from None
        self.send(Hello())
        self._heartbeats.setsockopt(zmq.SUBSCRIBE, b"")

    def read(self) -> None:
        """Receive messages from now on."""
        self._readers = [asyncio.create_task(self._read(each)) for each in (self._socket, self._heartbeats)]

    def send(self, message: Message) -> None:
        """Send without waiting; messages to a process that has ended are lost. Raises OverflowError as in `encode`."""
        data = encode(message)
        if not self._socket.closed:
            self._socket.send(data)

    async def read_last(self) -> None:
        """Receive what a process that has ended had sent, and nothing after it."""
        await self.stop_reading()
        while await self._socket.poll(LAST_MESSAGES_MS):
            self._take(await self._socket.recv())

    async def stop_reading(self) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def close(self) -> None:
        self._context.destroy(linger=0)

    async def _connected(self, kind: int, path: Path) -> zmq.asyncio.Socket:
        """A socket once its connection exists, which the process accepts when it is ready. Then the path can go."""
        connected = self._context.socket(kind)
        connected.set_hwm(0)
        connected.linger = 0
        connected.setsockopt(zmq.HANDSHAKE_IVL, 0)  # no limit: the process may need minutes to load its model
        monitor = connected.get_monitor_socket(zmq.EVENT_CONNECTED)
        try:
            connected.connect(f"ipc://{path}")
            if not await monitor.poll(CONNECT_LIMIT_MS):
                raise OSError(errno.ETIMEDOUT, "cannot connect to a socket of this process")
        finally:
            connected.disable_monitor()
            monitor.close(linger=0)
        return connected

    async def _read(self, connected: zmq.asyncio.Socket) -> None:
        num_taken = 0
        while True:
            arriving = asyncio.ensure_future(connected.recv())
            num_taken = num_taken + 1 if arriving.done() else 0
            if num_taken == MESSAGES_PER_TURN:
                # awaiting a finished future does not yield: an engine faster than its consumers would starve them
                await asyncio.sleep(0)
                num_taken = 0
            self._take(await arriving)

    def _take(self, data: bytes) -> None:
        try:
            message = decode(data)
        except WireError as error:
            logger.error("a message of the engine was dropped: %s", error)
            return
        self._receive(message)
