"""Several API processes in front of the engines of a deployment (`server.api_server_count`).

This process owns the engines and the listening sockets; the API processes inherit the sockets and connect to each
engine directly. One that ends is started again, within a budget. At a shutdown the sockets are closed and the processes
drain; the engines end after them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ..config import Resolved
from ..engine.client.engine_client import EngineState
from ..engine.client.process import EngineProcessClient
from ..engine.host.supervision import RestartBudget
from ..server.access.shared_state import SharedState
from ..server.http.shutdown import Shutdown
from ..server.observe.declared import SHARED_FOLDER
from ..temporary_folder import temporary_folder
from .api_process import LISTENING
from .ending import end_servers
from .serving_process import command_of, config_line, start

COMMAND = command_of("api_process")
MAX_RESTARTS = 5  # of each API process within 10 minutes
logger = logging.getLogger(__name__)


class ApiProcesses:
    def __init__(
        self,
        resolved: Resolved,
        engines: Mapping[int, EngineProcessClient],
        sockets: Sequence[socket.socket],
        shutdown: Shutdown,
    ) -> None:
        """engines: by rank, shared and already started. sockets: from `take_address`."""
        self._config = config_line(resolved)
        self._drain_timeout = resolved.server.drain_timeout
        self._num = resolved.server.api_server_count
        self._engines = dict(engines)
        self._sockets = list(sockets)
        self._shutdown = shutdown
        self._shared = SharedState(self._num)
        self._controls: dict[int, asyncio.StreamWriter] = {}
        self._processes: dict[int, Process] = {}
        self._listening: set[int] = set()  # processes that have accepted connections
        self._has_listened = False  # whether all of them have
        self._on_listening: Callable[[], None] = lambda: None

    async def run(self, on_listening: Callable[[], None] = lambda: None) -> int:
        """Serve until a shutdown is requested, or something ends that is not started again. Returns the exit code.

        on_listening: called once all processes accept connections.
        """
        self._on_listening = on_listening
        for rank, engine in self._engines.items():
            engine.on_change = partial(self._report_engine, rank)
        with temporary_folder("stoker-metrics-") as folder:
            return await self._run_with(folder)

    async def _run_with(self, metrics_folder: Path) -> int:
        keeping = [asyncio.create_task(self._keep(index, metrics_folder)) for index in range(self._num)]
        requested = asyncio.create_task(self._shutdown.requested.wait())
        try:
            done, _ = await asyncio.wait([requested, *keeping], return_when=asyncio.FIRST_COMPLETED)
            for sock in self._sockets:
                sock.close()
            await end_servers(keeping, self._signal, self._shutdown, self._drain_timeout)
            return 1 if requested not in done or self._is_engine_dead else 0
        finally:
            for engine in self._engines.values():
                engine.on_change = lambda: None
            requested.cancel()
            for task in keeping:
                task.cancel()
            await asyncio.gather(requested, *keeping, return_exceptions=True)

    async def _keep(self, index: int, metrics_folder: Path) -> None:
        """Run one process, and start it again while the budget allows."""
        budget, now = RestartBudget(MAX_RESTARTS), asyncio.get_running_loop().time
        while True:
            code = await self._run(index, metrics_folder)
            self._shared.forget(index)
            if self._shutdown.requested.is_set():
                return
            if self._is_engine_dead:
                logger.error("API process %d has ended, and the engine will not be started again: stopping", index)
                return
            if not budget.take(now()):
                logger.critical("API process %d ended with code %d; %d restarts are allowed", index, code, MAX_RESTARTS)
                return
            logger.error("API process %d ended with code %d; restarting it", index, code)

    async def _run(self, index: int, metrics_folder: Path) -> int:
        """Start one process, and wait until it ends. Returns its exit code."""
        arguments = ("--process", str(index), "--of", str(self._num), "--shared", str(self._shared.fd))
        environment = {**os.environ, SHARED_FOLDER: str(metrics_folder)}
        process, reader, writer = await start(
            (*COMMAND, *arguments), self._config, environment, self._sockets, [self._shared.fd]
        )
        self._processes[index], self._controls[index] = process, writer
        writer.write(b"".join(map(self._engine_line, self._engines)))
        if self._shutdown.requested.is_set():  # while it was being started
            process.terminate()
        if await reader.readline() == LISTENING:
            self._listening.add(index)
            if not self._has_listened and len(self._listening) == self._num:
                self._has_listened = True
                self._on_listening()
        code = await process.wait()
        del self._processes[index], self._controls[index]
        writer.close()
        return code

    @property
    def _is_engine_dead(self) -> bool:
        """Whether an engine will not be started again."""
        return any(engine.state is EngineState.DEAD for engine in self._engines.values())

    def _report_engine(self, rank: int) -> None:
        for control in self._controls.values():
            control.write(self._engine_line(rank))

    def _engine_line(self, rank: int) -> bytes:
        engine = self._engines[rank]
        paths = [str(path) for path in engine.paths]
        change = {"rank": rank, "state": engine.state.value, "reason": engine.reason, "paths": paths}
        return json.dumps(change).encode() + b"\n"

    def _signal(self, number: int) -> None:
        for process in list(self._processes.values()):
            if process.returncode is None:
                process.send_signal(number)
