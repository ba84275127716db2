"""`engine up` and `engine serve`: read, check, load, serve - in this order, so that mistakes come before the wait.

The engine is started as soon as all is decided; the server's modules and the tokenizer load beside it.
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
from ..config.errors import EXIT_FAILED
from ..logs import configure_logging
from ..server.address import take_address
from .console import is_coloured, say
from .notify import tell_ready
from .prepare import Interrupted, engine_client, fail, failing, interruptible, read, resolve_here, start_beside
from .startup_view import StartupView

if TYPE_CHECKING:
    from ..server.run import Text


class _Stopped(Exception):
    """Told to stop before there was anything to drain."""


def run(files: Sequence[Path | str], overrides: Sequence[str] = ()) -> int:
    """Serve the deployment until it is told to stop. Returns the exit code.

    files: manifests, weakest first; may be empty where the overrides name a model.
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
    """The address is taken first: in use, it is known before anything is downloaded."""
    deployment = read(files, overrides, view)
    view.begin("address")
    server = deployment.server
    uds = None if server.uds is None else deployment.located("server.uds")
    sockets += take_address(server.host, server.port, uds)
    view.note(uds or f"{server.host}:{_port(sockets)}")
    return resolve_here(deployment, view)


def load_server(resolved: Resolved) -> tuple[Text, float]:
    """The text layer, and the seconds that took. Raises what ends the start: a mistake in what the server needs."""
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
            # what was made so far lives as long as the process: the collector need not walk it while tokens stream
            gc.collect()
            gc.freeze()
            say(ready)
            tell_ready()

        return await run_server(resolved, client, text, sockets, on_listening=on_listening)
    finally:
        await client.close()


def _port(sockets: list[socket.socket]) -> int:
    """The one we got, where 0 was asked for; 0 for a Unix socket."""
    name = sockets[0].getsockname()
    return 0 if isinstance(name, str) else int(name[1])
