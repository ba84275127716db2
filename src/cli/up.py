"""`engine up` and `engine serve`: read, check, load, serve, in this order, so that errors are found before the wait."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import __version__
from ..config import Resolved
from ..engine.executor.launcher import check_serves
from ..logs import configure_logging
from ..server.http.address import take_address
from ..server.http.shutdown import Shutdown, on_signals
from .console import is_coloured, print_result
from .notify import notify_ready
from .orphans import with_orphans
from .prepare import failing, read, resolve_here
from .start import Stopped, port_of, start_and_serve
from .startup_view import StartupView


def run(files: Sequence[Path | str], overrides: Sequence[str] = ()) -> int:
    """Serve the deployment until a signal ends it. Returns the exit code. Raises KeyboardInterrupt before it is ready.

    files: manifests, weakest first; may be empty if the overrides set a model.
    overrides: words of the command line.
    """
    sockets: list[socket.socket] = []

    def work() -> int:
        with StartupView(f"stoker {__version__}", is_live=is_coloured(sys.stderr)) as view:
            resolved = _prepare(files, overrides, view, sockets)
            configure_logging(resolved.server)
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
        for sock in sockets:
            sock.close()


def _prepare(
    files: Sequence[Path | str], overrides: Sequence[str], view: StartupView, sockets: list[socket.socket]
) -> Resolved:
    """Binds the address first, so that an address in use is reported before anything is downloaded.

    sockets: the bound ones are added, so that the caller can close them after a failure too.
    """
    deployment = read(files, overrides, view)
    check_serves(deployment.config.parallel)
    view.begin("address")
    server = deployment.server
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
