"""One engine process as its client sees it: spawned, spoken to, and seen to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence

import zmq
import zmq.asyncio

from .socket_folder import SocketFolder
from .wire import BEATS_SOCKET, ENGINE_SOCKET, Hello, LastWords, Message, WireError, decode, encode

RECONNECT_MS = 10
LAST_MESSAGES_MS = 100  # after the process has ended: what it sent is on its way through the socket
MESSAGES_PER_TURN = 8  # read before everybody else on the event loop has a turn
logger = logging.getLogger(__name__)


class EngineChild:
    """The process lives in a private folder of sockets, which goes when it goes."""

    def __init__(self, command: Sequence[str], config: str, receive: Callable[[Message], None]) -> None:
        """
        command: starts the process; `--socket-dir DIR` is added.
        config: one line for its standard input.
        receive: is given each of its messages, on the event loop.
        """
        self._command = command
        self._config = config
        self._receive = receive
        self._context = zmq.asyncio.Context()
        self._readers: list[asyncio.Task[None]] = []
        self._process: Process | None = None
        self._last_words: LastWords | None = None
        self._ended: asyncio.Task[LastWords] | None = None

    async def start(self) -> None:
        """Raises OSError if the process cannot be started."""
        self._folder = SocketFolder()
        try:
            self._socket = self._connect(zmq.DEALER, ENGINE_SOCKET)
            self.send(Hello())
            beats = self._connect(zmq.SUB, BEATS_SOCKET)
            beats.setsockopt(zmq.SUBSCRIBE, b"")
            # stdin stays open as long as we live: its end tells the engine that we do not
            process = self._process = await asyncio.create_subprocess_exec(
                *self._command, "--socket-dir", str(self._folder.path), stdin=PIPE
            )
        except zmq.ZMQError as error:  # no OSError, though what it tells is one: no descriptors left, say
            self._close()
            raise OSError(error.errno, str(error)) from None
        except BaseException:  # a cancelled start too: asyncio has ended the process by then
            self._close()
            raise
        self._readers = [asyncio.create_task(self._read(each)) for each in (self._socket, beats)]
        self._ended = asyncio.create_task(self._watch(process))
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it died already, which _watch tells
            process.stdin.write(self._config.encode() + b"\n")
            await process.stdin.drain()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def send(self, message: Message) -> None:
        """Never waits; what is sent to a process that has ended is lost. Raises OverflowError as `encode` does."""
        data = encode(message)
        if not self._socket.closed:
            self._socket.send(data)

    async def ended(self) -> LastWords:
        """Wait for the process to end; why it did, in its own words or in ours."""
        assert self._ended is not None, "start comes first"
        return await asyncio.shield(self._ended)

    async def stop(self, grace_s: float = 1.0) -> None:
        """Ask it to end, and make it end after `grace_s`: a long step hears nothing, and there is nothing to save."""
        if self._process is None or self._ended is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
            done, _ = await asyncio.wait([self._ended], timeout=grace_s)
            if done:
                return

    def _connect(self, kind: int, name: str) -> zmq.asyncio.Socket:
        connected = self._context.socket(kind)
        connected.set_hwm(0)
        connected.linger = 0
        connected.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)  # until the process has bound it
        connected.connect(f"ipc://{self._folder.path / name}")
        return connected

    async def _read(self, connected: zmq.asyncio.Socket) -> None:
        num_taken = 0
        while True:
            arriving = asyncio.ensure_future(connected.recv())
            num_taken = num_taken + 1 if arriving.done() else 0
            if num_taken == MESSAGES_PER_TURN:
                # awaiting what is done already does not yield: an engine faster than its consumers would starve them
                await asyncio.sleep(0)
                num_taken = 0
            self._take(await arriving)

    def _take(self, data: bytes) -> None:
        try:
            message = decode(data)
        except WireError as error:
            logger.error("a message of the engine was dropped: %s", error)
            return
        if isinstance(message, LastWords):
            self._last_words = message
        else:
            self._receive(message)

    async def _watch(self, process: Process) -> LastWords:
        code = await process.wait()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        while await self._socket.poll(LAST_MESSAGES_MS):
            self._take(await self._socket.recv())
        if process.stdin is not None:
            process.stdin.close()
        self._close()
        return self._last_words or _words_for(code)

    def _close(self) -> None:
        self._context.destroy(linger=0)
        self._folder.remove()


def _words_for(code: int) -> LastWords:
    """For a process that said nothing."""
    if code >= 0:
        return LastWords("EngineExit", f"the engine process ended with exit code {code}")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (the kernel does this when memory runs out)" if name == "SIGKILL" else ""
    return LastWords("EngineExit", f"the engine process was ended by {name}{hint}")
