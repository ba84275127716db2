"""One of several API processes of a deployment: `python -m stoker.cli.api_process`, started by api_processes.py.

It inherits the listening sockets, a file that all API processes share, and a socket to the process that started it
(serving_process.py). On that comes a line for each change of an engine. It answers with one line when it accepts
connections. SIGTERM stops it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import socket
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..engine.client.attached import AttachedClient
from ..engine.client.engine_client import EngineState
from ..engine.client.replicated import ReplicatedClient
from ..logs import name_process
from ..server.access.shared_state import SharedState
from ..server.http.shutdown import Shutdown, on_signals
from ..server.run import check_server, load_text, run_server
from .serving_process import accept, follow

LISTENING = b"listening\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="stoker.cli.api_process", description=__doc__)
    parser.add_argument("--process", type=int, required=True)
    parser.add_argument("--of", type=int, required=True)
    parser.add_argument("--control", type=int, required=True, metavar="FD")
    parser.add_argument("--shared", type=int, required=True, metavar="FD")
    parser.add_argument("--listen", type=int, nargs="+", required=True, metavar="FD")
    given = parser.parse_args()
    name_process(given.process)
    shared = SharedState(given.of, process=given.process, fd=given.shared)
    return asyncio.run(_serve(given.control, [socket.socket(fileno=fd) for fd in given.listen], shared))


async def _serve(control: int, sockets: list[socket.socket], shared: SharedState) -> int:
    if (accepted := await accept(control)) is None:
        return 0
    resolved, reader, writer = accepted
    check_server(resolved)
    text = load_text(resolved)
    replicas, shutdown = {rank: AttachedClient() for rank in resolved.topology.replicas}, Shutdown()
    client = next(iter(replicas.values())) if len(replicas) == 1 else ReplicatedClient(replicas)
    following = asyncio.create_task(follow(reader, shutdown, partial(_take, replicas)))

    def on_listening() -> None:
        gc.collect()
        gc.freeze()
        writer.write(LISTENING)

    with on_signals(shutdown):
        try:
            await _unless_stopped(replicas.values(), shutdown)
            return await run_server(resolved, client, text, sockets, shutdown, on_listening=on_listening, shared=shared)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await client.close()


async def _unless_stopped(replicas: Iterable[AttachedClient], shutdown: Shutdown) -> None:
    """Wait for the first engine that is ready, or for a request to stop."""
    starts: list[asyncio.Future[Any]] = [asyncio.ensure_future(replica.start()) for replica in replicas]
    waits = [*starts, asyncio.ensure_future(shutdown.requested.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


async def _take(replicas: Mapping[int, AttachedClient], line: bytes) -> None:
    """A change of an engine: attach to it whenever it is ready."""
    change = json.loads(line)
    client = replicas[change["rank"]]
    if change["state"] != EngineState.READY:
        await client.lose(EngineState(change["state"]), change["reason"])
        return
    with contextlib.suppress(OSError):  # it has ended meanwhile, which the next line reports
        await client.attach([Path(path) for path in change["paths"]])


if __name__ == "__main__":
    sys.exit(main())
