"""The start of a server in this process: the engine, beside it the text layer, then the server until it is stopped.

The engine is started as soon as all values are decided; the server's modules and the tokenizer are loaded in parallel.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .. import __version__
from ..config import Measured, Resolved
from ..engine.client.process import EngineProcessClient
from ..engine.client.replicated import replicas_of
from ..server.http.shutdown import Shutdown
from .prepare import engine_client, start_beside
from .startup_view import StartupView

if TYPE_CHECKING:
    from ..server.run import Text

Result = TypeVar("Result")


class Stopped(Exception):
    """The start was stopped before there was anything to drain."""


def load_server(resolved: Resolved) -> tuple[Text, float]:
    """The text layer, and the seconds it took to load. Raises errors that end the start."""
    began = time.perf_counter()
    from ..server.run import check_server, load_text

    check_server(resolved)
    return load_text(resolved), time.perf_counter() - began


async def start_and_serve(
    resolved: Resolved,
    sockets: list[socket.socket],
    view: StartupView,
    shutdown: Shutdown,
    on_ready: Callable[[str], None],
) -> int:
    """Serve until a shutdown is requested. Returns the exit code. Raises Stopped if that was before `on_ready`.

    on_ready: called with the summary once they are.
    """
    client = engine_client(resolved, view.part)
    try:
        text, seconds = await _unless_stopped(start_beside(client, lambda: load_server(resolved)), shutdown)
        view.beside("server", seconds)
        view.close()
        from ..config.plan import calibration
        from ..server.run import run_server
        from .summary import summary

        port = port_of(sockets)
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
        if resolved.server.has_engine:
            calibration.append(calibration.record(resolved, measured, __version__))
        ready = summary(resolved, info, measured, text, port, view.seconds)

        def on_listening() -> None:
            # objects created so far live as long as the process: the garbage collector does not have to visit them
            gc.collect()
            gc.freeze()
            on_ready(ready)

        if resolved.server.api_server_count > 1:
            from .api_processes import ApiProcesses

            engines = {
                rank: each
                for rank, each in replicas_of(client, resolved.topology.replicas[0]).items()
                if isinstance(each, EngineProcessClient)  # a rule refuses an engine in this process
            }
            return await ApiProcesses(resolved, engines, sockets, shutdown).run(on_listening)
        return await run_server(resolved, client, text, sockets, shutdown, on_listening=on_listening)
    finally:
        await client.close()


async def _unless_stopped(work: Coroutine[Any, Any, Result], shutdown: Shutdown) -> Result:
    """The result of `work`. At a request to stop, it is cancelled and awaited, and Stopped is raised."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(shutdown.requested.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if shutdown.requested.is_set():
            raise Stopped
        return cast(Result, tasks[0].result())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def port_of(sockets: list[socket.socket]) -> int:
    """The port in use, if 0 was requested; 0 for a Unix socket."""
    name = sockets[0].getsockname()
    return 0 if isinstance(name, str) else int(name[1])
