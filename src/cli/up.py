"""`engine up` and `engine serve`: read, check, load, serve, in this order, so that errors are found before the wait.

The engine is started as soon as all values are decided; the server's modules and the tokenizer are loaded in parallel.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from ..config import Measured, Resolved
from ..config.exit_codes import EXIT_FAILED
from ..logs import configure_logging
from ..server.address import take_address
from .console import is_coloured, print_result
from .notify import notify_ready
from .prepare import Interrupted, engine_client, fail, failing, interruptible, read, resolve_here, start_beside
from .startup_view import StartupView

if TYPE_CHECKING:
    from ..server.run import Text


class _Stopped(Exception):
    """Stopped before there was anything to drain."""


def run(files: Sequence[Path | str], overrides: Sequence[str] = ()) -> int:
    """Serve the deployment until a signal ends it. Returns the exit code.

    files: manifests, weakest first; may be empty if the overrides set a model.
    overrides: words of the command line.
    """
    sockets: list[socket.socket] = []

    def work() -> int:
        with StartupView(f"stoker {__version__}", is_live=is_coloured(sys.stderr)) as view:
            resolved = _prepare(files, overrides, view, sockets)
            configure_logging(resolved.server)
            return asyncio.run(_serve(resolved, sockets, view))

    try:
        return failing(work)
    except (_Stopped, KeyboardInterrupt):
        return fail("stopped before it was ready", EXIT_FAILED)
    finally:
        for sock in sockets:
            sock.close()


def _prepare(
    files: Sequence[Path | str], overrides: Sequence[str], view: StartupView, sockets: list[socket.socket]
) -> Resolved:
    """Binds the address first, so that an address in use is reported before anything is downloaded."""
    deployment = read(files, overrides, view)
    view.begin("address")
    server = deployment.server
    uds = None if server.uds is None else deployment.located("server.uds")
    sockets += take_address(server.host, server.port, uds)
    view.note(uds or f"{server.host}:{_port(sockets)}")
    return resolve_here(deployment, view)


def load_server(resolved: Resolved) -> tuple[Text, float]:
    """The text layer, and the seconds it took to load. Raises errors that end the start."""
    began = time.perf_counter()
    from ..server.run import check_server, load_text

    check_server(resolved)
    return load_text(resolved), time.perf_counter() - began


async def _serve(resolved: Resolved, sockets: list[socket.socket], view: StartupView) -> int:
    view.begin("engine")
    client = engine_client(resolved, view.part)
    try:
        try:
            text, seconds = await interruptible(start_beside(client, lambda: load_server(resolved)))
        except Interrupted:
            raise _Stopped from None
        view.beside("server", seconds)
        view.close()
        from ..config.plan import calibration
        from ..server.run import run_server
        from .summary import summary

        port = _port(sockets)
        info = client.info
        measured = Measured(
            weights_bytes=info.weights_bytes,
            kv_cache_bytes=info.kv_cache_bytes,
            num_kv_blocks=info.num_blocks,
            resident_bytes=info.resident_bytes,
            peak_bytes=info.peak_bytes,
            phases=info.phases,
            kernels=info.kernels,
        )
        calibration.append(calibration.record(resolved, measured, __version__))
        ready = summary(resolved, info, measured, text[1], port, view.seconds)

        def on_listening() -> None:
            # objects created so far live as long as the process: the garbage collector does not have to visit them
            gc.collect()
            gc.freeze()
            print_result(ready)
            notify_ready()

        return await run_server(resolved, client, text, sockets, on_listening=on_listening)
    finally:
        await client.close()


def _port(sockets: list[socket.socket]) -> int:
    """The port in use, if 0 was requested; 0 for a Unix socket."""
    name = sockets[0].getsockname()
    return 0 if isinstance(name, str) else int(name[1])
