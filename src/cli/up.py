"""`engine up` and `engine serve`: read, check, load, serve, in this order, so that errors are found before the wait.

The engine is started as soon as all values are decided; the server's modules and the tokenizer are loaded in parallel.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .. import __version__
from ..config import Measured, Resolved
from ..engine.launched.launch import check_serves
from ..engine.process_client import EngineProcessClient
from ..engine.replicated_client import replicas_of
from ..logs import configure_logging
from ..server.http.address import take_address
from ..server.http.shutdown import Shutdown, on_signals
from .console import is_coloured, print_result
from .notify import notify_ready
from .prepare import engine_client, failing, read, resolve_here, start_beside
from .startup_view import StartupView

if TYPE_CHECKING:
    from ..server.run import Text


Result = TypeVar("Result")


class _Stopped(Exception):
    """Stopped before there was anything to drain."""


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

                return asyncio.run(run_node(resolved, sockets, _port(sockets)))
            return asyncio.run(_serve(resolved, sockets, view))

    try:
        return failing(work)
    except _Stopped:
        raise KeyboardInterrupt from None
    finally:
        for sock in sockets:
            sock.close()


def _prepare(
    files: Sequence[Path | str], overrides: Sequence[str], view: StartupView, sockets: list[socket.socket]
) -> Resolved:
    """Binds the address first, so that an address in use is reported before anything is downloaded."""
    deployment = read(files, overrides, view)
    check_serves(deployment.config.parallel)
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
    shutdown = Shutdown()
    with on_signals(shutdown):
        return await _start_and_serve(resolved, sockets, view, shutdown)


async def _start_and_serve(
    resolved: Resolved, sockets: list[socket.socket], view: StartupView, shutdown: Shutdown
) -> int:
    view.begin("engine")
    client = engine_client(resolved, view.part)
    try:
        text, seconds = await _unless_stopped(start_beside(client, lambda: load_server(resolved)), shutdown)
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
        ready = summary(resolved, info, measured, text, port, view.seconds)

        def on_listening() -> None:
            # objects created so far live as long as the process: the garbage collector does not have to visit them
            gc.collect()
            gc.freeze()
            print_result(ready)
            notify_ready()

        if resolved.server.api_server_count > 1:
            from .api_processes import ApiProcesses

            engines = {
                rank: each
                for rank, each in replicas_of(client, resolved.parallel.ranks[0]).items()
                if isinstance(each, EngineProcessClient)  # a rule refuses an engine in this process
            }
            return await ApiProcesses(resolved, engines, sockets, shutdown).run(on_listening)
        return await run_server(resolved, client, text, sockets, shutdown, on_listening=on_listening)
    finally:
        await client.close()


async def _unless_stopped(work: Coroutine[Any, Any, Result], shutdown: Shutdown) -> Result:
    """The result of `work`. At a request to stop, it is cancelled and awaited, and _Stopped is raised."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(shutdown.requested.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if shutdown.requested.is_set():
            raise _Stopped
        return cast(Result, tasks[0].result())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _port(sockets: list[socket.socket]) -> int:
    """The port in use, if 0 was requested; 0 for a Unix socket."""
    name = sockets[0].getsockname()
    return 0 if isinstance(name, str) else int(name[1])
