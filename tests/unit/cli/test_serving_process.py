"""A process that serves, and the connection to the one that has started it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys

from stoker.cli.serving_process import accept, config_line, follow, start
from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.server.http.shutdown import Shutdown

KEY = "a-key-that-is-not-shown"
LIMIT_S = 60.0
ECHO = """
import socket, sys
control = int(sys.argv[sys.argv.index("--control") + 1])
listening = [int(fd) for fd in sys.argv[sys.argv.index("--listen") + 1:]]
with socket.socket(fileno=control).makefile("rw") as lines:
    config = lines.readline()
    print(len(config), *(socket.socket(fileno=fd).getsockname()[1] for fd in listening), file=lines, flush=True)
"""


async def _nothing(line: bytes) -> None:
    pass


def test_a_process_inherits_sockets_and_gets_its_configuration() -> None:
    async def check() -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
            process, reader, writer = await start((sys.executable, "-c", ECHO), b"{}\n", os.environ, [sock])
            assert await asyncio.wait_for(reader.readline(), LIMIT_S) == b"3 %d\n" % port
            assert await asyncio.wait_for(process.wait(), LIMIT_S) == 0
            writer.close()

    asyncio.run(check())


def test_the_configuration_arrives_with_its_secrets() -> None:
    deployment = load_deployment([], ["--model", "builtin:tiny", "--api-key", KEY], env={})
    resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())

    async def check() -> None:
        ours, theirs = socket.socketpair()
        with ours:
            ours.sendall(config_line(resolved))
            accepted = await accept(theirs.detach())
            assert accepted is not None
            assert accepted[0].server.api_key[0].get_secret_value() == KEY
            accepted[2].close()

    asyncio.run(check())


def test_a_process_whose_starter_has_ended_has_nothing_to_do() -> None:
    async def check() -> None:
        ours, theirs = socket.socketpair()
        ours.close()
        assert await accept(theirs.detach()) is None

    asyncio.run(check())


def test_a_process_stops_when_its_starter_has_been_killed() -> None:
    """A line that was never read resets the connection. The error ended the task that stops the process."""

    async def check() -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        shutdown = Shutdown()
        writer.write(b"listening\n")
        theirs.close()
        await follow(reader, shutdown, _nothing)
        assert shutdown.cut.is_set()
        writer.close()

    asyncio.run(check())
