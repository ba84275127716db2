"""ReplicaConnection: between node 0 and a replica on another node: messages of wire.py in frames, and signs of life.

An empty frame is a sign of life, sent at an interval: neither side sees the end of the other's process if the network
is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from ...frames import LENGTH_BYTES, FrameTooLong, framed, length_of
from ..cluster.limits import ALIVE_S, SILENCE_S
from ..transport.messages import Message
from ..transport.records import WireError
from ..transport.wire import MAX_MESSAGE_BYTES, decode, encode

START = b"start"  # node 0: the replica is wanted now


class ReplicaConnection:
    """Connection of a replica on another machine. Use `run` as a task until the end."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silence_s: float = SILENCE_S
    ) -> None:
        """silence_s: of the other side, after which it is given up."""
        self._reader, self._writer, self._silence_s = reader, writer, silence_s
        self.receive: Callable[[Message], None] = lambda message: None  # called with each message
        self.started = asyncio.Event()  # node 0 wants the replica
        self.heard = asyncio.Event()  # a frame has come since the start of `run`: the other side lives
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # why
        end = writer.get_extra_info("socket")
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer: str = writer.get_extra_info("peername")[0]

    def send(self, message: Message) -> None:
        """Send without waiting; nothing is sent after the end. Raises OverflowError as `encode` does."""
        self.send_frame(encode(message))

    def send_frame(self, frame: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(framed(frame))

    async def run(self) -> None:
        """Exchange frames until the other side ends, or is silent."""
        living = asyncio.create_task(self._show_life())
        reason = "the connection was closed"
        try:
            while True:
                async with asyncio.timeout(self._silence_s):  # wait_for may swallow a cancellation on Python 3.11
                    frame = await self.read_frame()
                self.heard.set()
                if frame == START:
                    self.started.set()
                elif frame:
                    self.receive(decode(frame))
        except TimeoutError:
            reason = f"it has been silent for {self._silence_s:g} s"
            self._writer.transport.abort()  # what it has not read would keep the socket open
        except (OSError, EOFError):
            pass
        except (WireError, FrameTooLong) as error:
            reason = f"a message was not understood: {error}"
        finally:
            living.cancel()
            self.close()
            if not self.ended.done():
                self.ended.set_result(reason)

    async def read_frame(self, max_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
        """Raises OSError, EOFError, FrameTooLong."""
        return await self._reader.readexactly(length_of(await self._reader.readexactly(LENGTH_BYTES), max_bytes))

    async def _show_life(self) -> None:
        while True:
            self.send_frame(b"")
            await asyncio.sleep(ALIVE_S)

    async def flush(self) -> None:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(SILENCE_S):
                await self._writer.drain()

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._writer.close()
