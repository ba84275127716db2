"""The server of one replica: `python -m stoker.cli.replica_server`, started by replica_process.py.

It inherits the listening sockets, and a socket to its supervisor (serving_process.py). On that comes a line with its
number for each probe. It sends lines of JSON: the phases of its start, its summary when it accepts requests, and the
answers to probes. SIGTERM stops it, and on Linux the kernel ends it with its supervisor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import socket
import sys
import time
from dataclasses import asdict
from typing import Any

from ..engine.processes.parent_death import die_with_parent
from ..logs import name_process
from ..server.health import liveness, state_body
from ..server.http.shutdown import Shutdown, on_signals
from ..server.replica_health import ProbeAnswer
from ..server.service import Service
from .prepare import failing
from .serving_process import accept, follow
from .start import Stopped, start_and_serve

logger = logging.getLogger(__name__)


def main() -> int:
    parser = argparse.ArgumentParser(prog="stoker.cli.replica_server", description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--began", type=float, required=True, help="when the command began, of time.monotonic")
    parser.add_argument("--control", type=int, required=True, metavar="FD")
    parser.add_argument("--listen", type=int, nargs="+", required=True, metavar="FD")
    given = parser.parse_args()
    die_with_parent()
    name_process(given.rank, "replica")
    sockets = [socket.socket(fileno=fd) for fd in given.listen]
    try:
        return failing(lambda: asyncio.run(_serve(given.control, sockets, given.began)))
    except Stopped:
        return 0


async def _serve(control: int, sockets: list[socket.socket], began: float) -> int:
    if (accepted := await accept(control)) is None:
        return 0
    resolved, reader, writer = accepted
    shutdown, supervisor = Shutdown(), _Supervisor(writer, began)
    with on_signals(shutdown):
        following = asyncio.create_task(follow(reader, shutdown, supervisor.take))
        try:
            return await start_and_serve(
                resolved, sockets, supervisor, shutdown, supervisor.on_ready, supervisor.on_service
            )
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


class _Supervisor:
    """The process that started this one, as the server sees it."""

    shows_places = True  # of all servers

    def __init__(self, writer: asyncio.StreamWriter, began: float) -> None:
        """began: its command, of time.monotonic."""
        self._writer = writer
        self._began = began
        self._is_serving = False
        self._service: Service | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def part(self, name: str) -> None:
        if not self._is_serving:
            self._send({"phase": name})
        elif ": " not in name:  # the engine is started again; without the progress of a phase
            logger.info("engine start: %s", name)

    def beside(self, name: str, seconds: float) -> None:
        """It shows the phases of the engine alone."""

    def close(self) -> None:
        self._is_serving = True

    def on_service(self, service: Service) -> None:
        self._service = service

    def on_ready(self, summary: str) -> None:
        self._send({"summary": summary})

    async def take(self, line: bytes) -> None:
        """Answer a probe."""
        if self._service is not None:
            self._send({"probe": int(line), "answer": asdict(_answer(self._service))})

    def _send(self, line: dict[str, Any]) -> None:
        self._writer.write(json.dumps(line).encode() + b"\n")


def _answer(service: Service) -> ProbeAnswer:
    dead, error = liveness(service), service.not_ready()  # a full queue is its balancer's concern
    body = state_body(service, dead or error)
    return ProbeAnswer(dead is None, error is None, body["state"], body.get("reason", ""))


if __name__ == "__main__":
    sys.exit(main())
