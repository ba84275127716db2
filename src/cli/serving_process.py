"""Processes that serve a part of a deployment, started by this package with listening sockets that they inherit.

Over an inherited socket come the configuration, as one line of JSON with its secrets, and then lines of both sides. The
process stops when the other side closes it, or has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ..config import Resolved
from ..logs import configure_logging
from ..server.http.shutdown import Shutdown

_MAX_LINE_BYTES = 64 << 20  # of the configuration


def command_of(module: str) -> tuple[str, ...]:
    """module: of this package."""
    return (sys.executable, "-m", f"{__package__}.{module}")


def config_line(resolved: Resolved) -> bytes:
    return resolved.model_dump_json(context={"reveal_secrets": True}).encode() + b"\n"


async def start(
    command: Sequence[str],
    config: bytes,
    environment: Mapping[str, str],
    sockets: Sequence[socket.socket],
    fds: Sequence[int] = (),
) -> tuple[Process, asyncio.StreamReader, asyncio.StreamWriter]:
    """The process, and the connection to it.

    command: gets the words `--control FD --listen FD ...`. sockets: on which it listens. fds: inherited too.
    """
    ours, theirs = socket.socketpair()
    listening = [sock.fileno() for sock in sockets]
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *command,
            *("--control", str(theirs.fileno()), "--listen", *map(str, listening)),
            env=environment,
            stdin=DEVNULL,
            pass_fds=(theirs.fileno(), *listening, *fds),
            process_group=0,  # Ctrl-C in a terminal reaches this process, which stops them all
        )
    reader, writer = await asyncio.open_connection(sock=ours, limit=_MAX_LINE_BYTES)
    writer.write(config)
    return process, reader, writer


async def accept(control: int) -> tuple[Resolved, asyncio.StreamReader, asyncio.StreamWriter] | None:
    """Return the configuration of the process that was started, whose logging is set up, and the connection. None if
    the other side has ended. control: the file descriptor."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=control), limit=_MAX_LINE_BYTES)
    if not (line := await reader.readline()):
        writer.close()
        return None
    resolved = Resolved.model_validate_json(line)
    configure_logging(resolved.server)
    return resolved, reader, writer


async def follow(reader: asyncio.StreamReader, shutdown: Shutdown, take: Callable[[bytes], Awaitable[None]]) -> None:
    """Calls `take` with each further line; at the end requests a shutdown without a drain."""
    with contextlib.suppress(ConnectionError):  # it was killed
        while line := await reader.readline():
            await take(line)
    shutdown.request("the process that started this one has ended")
    shutdown.cut.set()
