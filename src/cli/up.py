"""`engine up` and `engine serve`: read, check, load, serve, in this order, so that errors are found before the wait."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from .. import __version__
from ..config import Resolved
from ..engine.ranks.launched.launch import check_serves
from ..logs import configure_logging
from ..server.http.address import take_address
from ..server.http.shutdown import Shutdown, on_signals
from .console import is_coloured, print_result
from .notify import notify_ready
from .orphans import with_orphans
from .prepare import failing, read, resolve_here
from .replica_ports import take_ports
from .start import Stopped, port_of, start_and_serve
from .startup_view import StartupView


def run(files: Sequence[Path | str], overrides: Sequence[str] = ()) -> int:
    """Serve the deployment until a signal ends it. Returns the exit code. Raises KeyboardInterrupt before it is ready.

    files: manifests, weakest first; may be empty if the overrides set a model.
    overrides: words of the command line.
    """
    sockets: list[socket.socket] = []
    of_replicas: dict[int, list[socket.socket]] = {}

    def work() -> int:
        with StartupView(f"stoker {__version__}", is_live=is_coloured(sys.stderr)) as view:
            resolved = _prepare(files, overrides, view, sockets, of_replicas)
            configure_logging(resolved.server)
            if of_replicas:
                from .replica_servers import serve_replicas

                return asyncio.run(with_orphans(serve_replicas(resolved, sockets, of_replicas, view)))
            if resolved.server.headless:
                view.close()
                from .headless import run_node

                return asyncio.run(with_orphans(run_node(resolved, sockets, port_of(sockets))))
            return asyncio.run(with_orphans(_serve(resolved, sockets, view)))

    try:
        return failing(work)
    except Stopped:
        raise KeyboardInterrupt from None
    finally:
        for sock in (*sockets, *chain.from_iterable(of_replicas.values())):
            sock.close()


def _prepare(
    files: Sequence[Path | str],
    overrides: Sequence[str],
    view: StartupView,
    sockets: list[socket.socket],
    of_replicas: dict[int, list[socket.socket]],
) -> Resolved:
    """Binds the address first, so that an address in use is reported before anything is downloaded.

    sockets: gets those of this process. of_replicas: gets those of the servers that it starts, by rank.
    """
    deployment = read(files, overrides, view)
    check_serves(deployment.config.parallel)
    view.begin("address")
    server, parallel = deployment.server, deployment.config.parallel
    if parallel.data_parallel_multi_port_external_lb:
        take_ports(server.host, server.port, parallel, sockets, of_replicas)
        *_, last = parallel.ports(server.port).values()
        view.note(f"{server.host}:{server.port} to {last}; the supervisor at {parallel.data_parallel_supervisor_port}")
        return resolve_here(deployment, view)
    uds = None if server.uds is None else deployment.located("server.uds")
    sockets += take_address(server.host, server.port, uds)
    view.note(uds or f"{server.host}:{port_of(sockets)}")
    return resolve_here(deployment, view)


async def _serve(resolved: Resolved, sockets: list[socket.socket], view: StartupView) -> int:
    def on_ready(summary: str) -> None:
        print_result(summary)
        notify_ready()

    shutdown = Shutdown()
    view.begin("engine")
    with on_signals(shutdown):
        return await start_and_serve(resolved, sockets, view, shutdown, on_ready)
