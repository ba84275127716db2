"""The server of a replica, and the connection to its supervisor."""

from __future__ import annotations

import asyncio
import socket
import time

from stoker.cli.replica_server import _Supervisor
from stoker.server.http.shutdown import Shutdown


def test_a_server_stops_when_its_supervisor_has_been_killed() -> None:
    """An answer that was never read resets the connection. The error ended the task that stops the server."""

    async def check() -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        shutdown, supervisor = Shutdown(), _Supervisor(writer, time.monotonic())
        supervisor.part("weights")
        theirs.close()
        await supervisor.follow(reader, shutdown)
        assert shutdown.cut.is_set()
        writer.close()

    asyncio.run(check())


def test_a_server_is_ready_after_the_time_since_the_command_began() -> None:
    """It was that since the modules of this process were loaded: less than that of the engine in the line above it."""
    began = time.monotonic() - 1000.0
    ours, theirs = socket.socketpair()

    async def check() -> None:
        _, writer = await asyncio.open_connection(sock=ours)
        assert _Supervisor(writer, began).seconds >= 1000.0
        writer.close()

    with theirs:
        asyncio.run(check())
