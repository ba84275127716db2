"""A server for each replica, and their supervisor (`parallel.data_parallel_multi_port_external_lb`).

This process serves no requests: it starts the servers, probes them, and answers for all. A server that ends, or that
fails its probes, is started again within a budget, on its port, while the others serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping

from ..config import Resolved
from ..config.exit_codes import EXIT_FAILED
from ..config.load_limit import LOAD_LIMIT_S
from ..engine.processes.supervision import RestartBudget
from ..logs import log_fields
from ..server.http.address import CannotListen, bind
from ..server.http.shutdown import Shutdown, on_signals
from ..server.replica_health import ReplicaHealth
from ..server.supervisor_probe import serve_health
from .console import print_result
from .ending import end_servers
from .notify import notify_ready
from .numa_view import place_rows
from .prepare import device_variables
from .replica_process import ReplicaProcess
from .server_url import base_url
from .serving_process import config_line
from .start import Stopped
from .startup_view import StartupView

_FIRST_WAIT_S, _MAX_WAIT_S = 0.1, 5.0  # between two attempts to bind a port
_REPORT_S = 5.0  # the kernel may close the sockets of a killed process after it has reported its end
logger = logging.getLogger(__name__)


async def serve_replicas(
    resolved: Resolved,
    sockets: list[socket.socket],
    of_replicas: Mapping[int, list[socket.socket]],
    view: StartupView,
) -> int:
    """Until a signal, or until a server will not be started again. Returns the exit code.

    sockets, of_replicas: from `take_ports`. Raises Stopped if the signal comes before all servers accept requests.
    """
    shutdown = Shutdown()

    def on_listening(summary: str) -> None:
        view.close()
        print_result(f"{_ports(resolved)}\n{summary}")
        notify_ready()

    view.begin("engine")
    with on_signals(shutdown):
        began = time.monotonic() - view.seconds
        servers = ReplicaServers(resolved, of_replicas, shutdown, began, view.part, on_listening)
        health = asyncio.create_task(serve_health(sockets, shutdown, servers.health))
        health.add_done_callback(lambda _: shutdown.requested.set())
        try:
            code = await servers.run()
        finally:
            shutdown.requested.set()
            await health
    if not (servers.have_listened or code):
        raise Stopped
    return code


class ReplicaServers:
    """Attributes:
    health: of each server, by the rank of its replica.
    have_listened: whether all servers have accepted requests at the same time.
    """

    def __init__(
        self,
        resolved: Resolved,
        sockets: Mapping[int, list[socket.socket]],
        shutdown: Shutdown,
        began: float,
        on_phase: Callable[[str], None],
        on_listening: Callable[[str], None],
        start_limit_s: float = LOAD_LIMIT_S,
    ) -> None:
        """began: the command, of time.monotonic. on_phase: of the first server.
        on_listening: called with its summary when all accept requests.
        start_limit_s: of each server, after which it is started again."""
        self._resolved = resolved
        self._sockets = dict(sockets)
        self._shutdown = shutdown
        self._began = began
        self._on_phase = on_phase
        self._on_listening = on_listening
        self._start_limit_s = start_limit_s
        self._max_restarts = resolved.server.engine_restarts
        parallel = resolved.parallel
        self._interval_s = parallel.dp_supervisor_probe_interval_s
        self._timeout_s = parallel.dp_supervisor_probe_timeout_s
        threshold = parallel.dp_supervisor_probe_failure_threshold
        self.health = {rank: ReplicaHealth(threshold, self._timeout_s) for rank in self._sockets}
        self.have_listened = False
        self._processes: dict[int, ReplicaProcess] = {}
        self._summaries: dict[int, str] = {}  # of servers that accept requests

    async def run(self) -> int:
        """Until a shutdown is requested, or a server will not be started again. Returns the exit code."""
        keeping = [asyncio.create_task(self._keep(rank)) for rank in self.health]
        probing = [asyncio.create_task(self._probe(rank)) for rank in self.health]
        requested = asyncio.create_task(self._shutdown.requested.wait())
        try:
            done, _ = await asyncio.wait([requested, *keeping], return_when=asyncio.FIRST_COMPLETED)
            failed = [task for task in keeping if task in done and requested not in done]
            await end_servers(keeping, self._signal, self._shutdown, self._resolved.server.drain_timeout)
            return failed[0].result() if failed else 0
        finally:
            for task in (requested, *keeping, *probing):
                task.cancel()
            await asyncio.gather(requested, *keeping, *probing, return_exceptions=True)

    async def _keep(self, rank: int) -> int:
        """Run one server, and start it again while the budget allows. Returns the exit code of the deployment."""
        health = self.health[rank]
        budget, now = RestartBudget(self._max_restarts), asyncio.get_running_loop().time
        while not self._shutdown.requested.is_set():
            code = await self._run(rank)
            if self._shutdown.requested.is_set():
                break
            reason = health.reason if health.must_be_replaced else f"the server {_end(code)}"
            if not health.has_served and not health.is_overdue:  # it would fail again, and has said why
                logger.critical("replica %d: %s before it accepted requests: stopping", rank, reason)
                return code if code > 0 else EXIT_FAILED
            if not budget.take(now()):
                logger.critical("replica %d: %s; %d restarts are allowed", rank, reason, self._max_restarts)
                return EXIT_FAILED
            health.restarts(reason)
            log_fields(logger, logging.ERROR, "the server of a replica is restarted", {"rank": rank, "reason": reason})
            self._sockets[rank] = await self._bind_again(rank)
        return 0

    async def _run(self, rank: int) -> int:
        """One start of a server, to its end."""
        resolved = self._resolved.server_of(rank)
        index = rank - self._resolved.parallel.ranks.start
        environment = {**os.environ, **device_variables(self._resolved, index)}

        def on_summary(summary: str) -> None:
            self.health[rank].listens()
            self._summaries[rank] = summary
            if not self.have_listened and len(self._summaries) == len(self.health):
                self.have_listened = True
                self._on_listening(self._summaries[min(self._summaries)])

        is_shown = index == 0 and not self.health[rank].has_served
        on_phase = self._on_phase if is_shown else _ignore
        process = self._processes[rank] = ReplicaProcess(rank, self._began, on_phase, on_summary)
        limit = asyncio.get_running_loop().call_later(self._start_limit_s, self._give_up, rank, process)
        try:
            return await process.run(config_line(resolved), environment, self._sockets[rank])
        finally:
            limit.cancel()
            self._summaries.pop(rank, None)

    def _give_up(self, rank: int, process: ReplicaProcess) -> None:
        """Ends a server that does not listen yet."""
        if process.is_listening or self.health[rank].must_be_replaced:
            return
        self.health[rank].overdue(self._start_limit_s)
        self._report_end(rank)
        process.send(signal.SIGKILL)

    async def _bind_again(self, rank: int) -> list[socket.socket]:
        """Waits while another program has the port. Empty if a shutdown is requested meanwhile."""
        loop = asyncio.get_running_loop()
        host, port = self._resolved.server.host, self._resolved.server_of(rank).server.port
        reports_at, wait_s = loop.time() + _REPORT_S, _FIRST_WAIT_S
        while not self._shutdown.requested.is_set():
            try:
                return bind(host, port)
            except CannotListen as error:
                self.health[rank].waits(str(error))
                if loop.time() > reports_at:
                    reports_at = math.inf
                    what = "the server of a replica waits for its port"
                    log_fields(logger, logging.ERROR, what, {"rank": rank, "reason": str(error)})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._shutdown.requested.wait()
            wait_s = min(2 * wait_s, _MAX_WAIT_S)
        return []

    async def _probe(self, rank: int) -> None:
        """At each interval. Ends a server that has failed too often, so that `_keep` starts it again."""
        health = self.health[rank]
        while True:
            await asyncio.sleep(self._interval_s)
            process = self._processes[rank]
            if not process.is_listening:
                continue
            answer = await process.probe(self._timeout_s)
            if not process.is_listening:  # it ended meanwhile
                continue
            health.probed(answer)
            if health.must_be_replaced and not self._shutdown.requested.is_set():
                self._report_end(rank)
                await process.replace(is_answering=answer is not None)

    def _report_end(self, rank: int) -> None:
        log_fields(logger, logging.ERROR, "a server is ended", {"rank": rank, "reason": self.health[rank].reason})

    def _signal(self, number: int) -> None:
        for process in self._processes.values():
            process.send(number)


def _ports(resolved: Resolved) -> str:
    """Where each server is, and the supervisor."""
    server, parallel = resolved.server, resolved.parallel
    is_tls = server.ssl_certfile is not None
    rows = [("supervisor", f"{base_url(server.host, parallel.data_parallel_supervisor_port)}/health")]
    ports = parallel.ports(server.port)
    rows += [(f"replica {rank}", f"{base_url(server.host, port, is_tls=is_tls)}/v1") for rank, port in ports.items()]
    rows += place_rows(resolved)
    rows.append(("servers", f"{len(ports)}; what follows is of the first"))
    return "\n".join(f"  {name:<10}  {value}" for name, value in rows)


def _end(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _ignore(phase: str) -> None:
    """The phases of all servers are alike."""
