"""EngineChild: one engine process, seen from its client. Starts it, exchanges messages with it, and reports its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import zmq
import zmq.asyncio

from .brief_paths import brief_paths
from .messages import ExitReason, Hello, Message
from .wire import WireError, decode, encode

CONNECT_LIMIT_MS = 10_000
LAST_MESSAGES_MS = 100  # after the process has ended: its last messages may still be in the socket
MESSAGES_PER_TURN = 8  # read before other tasks of the event loop run
logger = logging.getLogger(__name__)


class EngineChild:
    """One start of the engine process."""

    def __init__(
        self,
        command: Sequence[str],
        config: str,
        receive: Callable[[Message], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """
        command: starts the process; `--sockets` and two descriptors are added.
        config: one line for its standard input.
        receive: called with each of its messages, on the event loop.
        environment: None is that of this process.
        """
        self._command = command
        self._config = config
        self._receive = receive
        self._environment = environment
        self._context = zmq.asyncio.Context()
        self._readers: list[asyncio.Task[None]] = []
        self._process: Process | None = None
        self._exit_reason: ExitReason | None = None
        self._ended: asyncio.Task[ExitReason] | None = None

    async def start(self) -> None:
        """Raises OSError if the process cannot be started."""
        try:
            with contextlib.ExitStack() as stack:
                listeners = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
                with brief_paths(listeners) as (for_messages, for_heartbeats):
                    self._socket = await self._connected(zmq.DEALER, for_messages)
                    heartbeats = await self._connected(zmq.SUB, for_heartbeats)
                self.send(Hello())
                heartbeats.setsockopt(zmq.SUBSCRIBE, b"")
                fds = [listener.fileno() for listener in listeners]
                # stdin stays open as long as this process runs: the engine exits when it is closed
                process = self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    "--sockets",
                    *map(str, fds),
                    stdin=PIPE,
                    env=self._environment,
                    pass_fds=fds,
                    process_group=0,  # Ctrl-C in a terminal reaches this process, which stops the engine
                )
        except zmq.ZMQError as error:  # not an OSError, but caused by one, such as no file descriptors left
            self._close()
            raise OSError(error.errno, str(error)) from None
        except BaseException:  # a cancelled start too: asyncio has already ended the process
            self._close()
            raise
        self._readers = [asyncio.create_task(self._read(each)) for each in (self._socket, heartbeats)]
        self._ended = asyncio.create_task(self._watch(process))
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has ended already; _watch reports that
            process.stdin.write(self._config.encode() + b"\n")
            await process.stdin.drain()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def send(self, message: Message) -> None:
        """Does not wait; messages to a process that has ended are lost. Raises OverflowError as `encode` does."""
        data = encode(message)
        if not self._socket.closed:
            self._socket.send(data)

    async def ended(self) -> ExitReason:
        """Wait for the process to end. Returns the reason it sent, or one made from its exit code."""
        assert self._ended is not None, "start comes first"
        return await asyncio.shield(self._ended)

    async def stop(self, grace_s: float = 1.0) -> None:
        """Send SIGTERM, then SIGKILL after `grace_s`: a long step ignores SIGTERM, and there is no state to save."""
        if self._process is None or self._ended is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
            done, _ = await asyncio.wait([self._ended], timeout=grace_s)
            if done:
                return

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
        if isinstance(message, ExitReason):
            self._exit_reason = message
        else:
            self._receive(message)

    async def _watch(self, process: Process) -> ExitReason:
        code = await process.wait()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        while await self._socket.poll(LAST_MESSAGES_MS):
            self._take(await self._socket.recv())
        if process.stdin is not None:
            process.stdin.close()
        self._close()
        return self._exit_reason or _reason_from(code)

    def _close(self) -> None:
        self._context.destroy(linger=0)


def _reason_from(code: int) -> ExitReason:
    """For a process that sent no reason."""
    if code >= 0:
        return ExitReason("EngineExit", f"the engine process ended with exit code {code}")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (the kernel does this when memory runs out)" if name == "SIGKILL" else ""
    return ExitReason("EngineExit", f"the engine process was ended by {name}{hint}")
