"""EngineChild: one engine process, seen from its client. Starts it, exchanges messages with it, and reports its end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..transport.messages import ExitReason, Message
from .brief_paths import brief_paths
from .connection import EngineConnection


class Child(Protocol):
    """One start of an engine, here or on another node."""

    @property
    def paths(self) -> list[Path]: ...

    @property
    def pid(self) -> int | None: ...

    async def start(self) -> None:
        """Raises OSError."""

    def send(self, message: Message) -> None: ...

    async def ended(self) -> ExitReason: ...

    async def stop(self, grace_s: float = 1.0) -> None: ...


class EngineChild:
    """One start of the engine process."""

    def __init__(
        self,
        command: Sequence[str],
        config: str,
        receive: Callable[[Message], None],
        environment: Mapping[str, str] | None = None,
        *,
        is_shared: bool = False,
        inherits: Sequence[int] = (),
    ) -> None:
        """
        command: starts the process; `--sockets` and two descriptors are added.
        config: one line for its standard input.
        receive: called with each of its messages, on the event loop.
        environment: None: of this process.
        is_shared: whether other processes connect too; then the paths of the sockets exist until the end.
        inherits: descriptors that the process has too.
        """
        self._command = command
        self._config = config
        self._receive = receive
        self._environment = environment
        self._is_shared = is_shared
        self._inherits = inherits
        self._connection = EngineConnection(self._take)
        self._paths = contextlib.ExitStack()
        self.paths: list[Path] = []  # of its sockets, if it is shared
        self._process: Process | None = None
        self._exit_reason: ExitReason | None = None
        self._ended: asyncio.Task[ExitReason] | None = None

    async def start(self) -> None:
        """Raises OSError if the process cannot be started."""
        try:
            with contextlib.ExitStack() as stack:
                listeners = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
                self.paths = self._paths.enter_context(brief_paths(listeners))
                await self._connection.open(*self.paths)
                if not self._is_shared:
                    self._paths.close()
                fds = [listener.fileno() for listener in listeners]
                # stdin stays open as long as this process runs: the engine exits when it is closed
                process = self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    "--sockets",
                    *map(str, fds),
                    stdin=PIPE,
                    env=self._environment,
                    pass_fds=[*fds, *self._inherits],
                    process_group=0,  # Ctrl-C in a terminal reaches this process, which stops the engine
                )
        except BaseException:  # a cancelled start too: asyncio has already ended the process
            self._close()
            raise
        self._connection.read()
        self._ended = asyncio.create_task(self._watch(process))
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has ended already; _watch reports that
            process.stdin.write(self._config.encode() + b"\n")
            await process.stdin.drain()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def send(self, message: Message) -> None:
        """Send without waiting; messages to a process that has ended are lost. Raises OverflowError as in `encode`."""
        self._connection.send(message)

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

    def _take(self, message: Message) -> None:
        if isinstance(message, ExitReason):
            self._exit_reason = message
        else:
            self._receive(message)

    async def _watch(self, process: Process) -> ExitReason:
        code = await process.wait()
        await self._connection.read_last()
        if process.stdin is not None:
            process.stdin.close()
        self._close()
        return self._exit_reason or _reason_from(code)

    def _close(self) -> None:
        self._connection.close()
        self._paths.close()


def _reason_from(code: int) -> ExitReason:
    """Exit reason of a process that sent none."""
    if code >= 0:
        return ExitReason("EngineExit", f"the engine process ended with exit code {code}")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (the kernel does this when memory runs out)" if name == "SIGKILL" else ""
    return ExitReason("EngineExit", f"the engine process was ended by {name}{hint}")
