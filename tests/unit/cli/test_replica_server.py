"""The server of a replica, and the connection to its supervisor."""

from __future__ import annotations

import asyncio
import socket
import time

from stoker.cli.replica_server import _Supervisor


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
