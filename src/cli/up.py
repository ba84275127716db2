"""`engine up` and `engine serve`: read, check, load, serve - in this order, so that mistakes come before the wait."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from ..config import (
    DeploymentError,
    Measured,
    Resolved,
    fetch_model,
    load_deployment,
    read_machine_facts,
    read_model_facts,
    resolve,
)
from ..config.plan import calibration
from ..engine.api import EngineDead
from ..engine.client import EngineStartFailed
from ..engine.in_process_client import InProcessClient
from ..engine.process_client import EngineProcessClient
from ..engine.startup import build_core, exit_code_of
from ..logs import LoggingProblem, configure_logging
from ..server.address import CannotListen, take_address
from ..server.middleware import MiddlewareProblem
from ..server.run import check_server, load_text, run_server
from ..server.text.renderer import Renderer, TemplateProblem
from ..server.text.tokenizer import Tokenizer, TokenizerError
from ..server.tls import TlsProblem
from .console import is_coloured, say, tell
from .notify import tell_ready
from .startup_view import StartupView
from .summary import summary

EXIT_FAILED = 1
EXIT_MODEL_FILES = 3
EXIT_ENVIRONMENT = 4
EXIT_INVALID_CONFIGURATION = 78
Text = tuple[Tokenizer | None, Renderer | None]


class _Stopped(Exception):
    """Told to stop before there was anything to drain."""


def run(files: Sequence[Path | str], overrides: Sequence[str] = ()) -> int:
    """Serve the deployment until it is told to stop. Returns the exit code.

    files: manifests, weakest first; may be empty where the overrides name a model.
    overrides: words of the command line.
    """
    sockets: list[socket.socket] = []
    try:
        with StartupView(f"stoker {__version__}", is_live=is_coloured(sys.stderr)) as view:
            resolved, text, sockets = _prepare(files, overrides, view)
            configure_logging(resolved.server)
            return asyncio.run(_serve(resolved, text, sockets, view))
    except DeploymentError as error:
        return _fail(str(error), error.exit_code)
    except (TokenizerError, TemplateProblem) as error:
        return _fail(str(error), EXIT_MODEL_FILES)
    except (MiddlewareProblem, LoggingProblem) as error:
        return _fail(str(error), EXIT_INVALID_CONFIGURATION)
    except (CannotListen, TlsProblem) as error:
        return _fail(str(error), EXIT_ENVIRONMENT)
    except EngineStartFailed as error:
        return _fail(_cause(error), error.exit_code)
    except (MemoryError, OSError) as error:
        return _fail(str(error), exit_code_of(error))
    except (_Stopped, KeyboardInterrupt):
        return _fail("stopped before it was ready", EXIT_FAILED)
    finally:
        for sock in sockets:
            sock.close()


def _prepare(
    files: Sequence[Path | str], overrides: Sequence[str], view: StartupView
) -> tuple[Resolved, Text, list[socket.socket]]:
    """All that needs no torch. The address is taken first: in use, it is known before anything is downloaded."""
    view.begin("configuration")
    view.note(", ".join(str(file) for file in files))
    deployment = load_deployment(files, overrides)
    view.begin("address")
    server = deployment.server
    uds = None if server.uds is None else deployment.located("server.uds")
    sockets = take_address(server.host, server.port, uds)
    try:
        view.note(uds or f"{server.host}:{_port(sockets)}")
        view.begin("model files")
        view.note(str(fetch_model(deployment)))
        facts = read_model_facts(deployment)
        machine = read_machine_facts()
        resolved = resolve(deployment, facts, machine)
        for warning in resolved.warnings:  # of the files and of the rules
            tell(warning)
        check_server(resolved)
        view.begin("tokenizer")
        text = load_text(resolved)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return resolved, text, sockets


async def _serve(resolved: Resolved, text: Text, sockets: list[socket.socket], view: StartupView) -> int:
    view.begin("engine")
    client = _client(resolved, view.part)
    try:
        if not await _started(client):
            raise _Stopped
        view.close()
        port = _port(sockets)
        info = client.info
        measured = Measured(
            weights_bytes=info.weights_bytes,
            kv_cache_bytes=info.kv_cache_bytes,
            num_kv_blocks=info.num_blocks,
            resident_bytes=_resident_bytes(client),
            peak_bytes=_peak_bytes(client),
            phases=info.phases,
            kernels=info.kernels,
        )
        calibration.append(calibration.record(resolved, measured, __version__))
        ready = summary(resolved, info, measured, text[1], port, view.seconds)

        def on_listening() -> None:
            say(ready)
            tell_ready()

        return await run_server(resolved, client, text, sockets, on_listening=on_listening)
    finally:
        await client.close()


def _client(resolved: Resolved, on_phase: Callable[[str], None]) -> EngineProcessClient | InProcessClient:
    server = resolved.server
    if server.disable_frontend_multiprocessing:
        return InProcessClient(lambda phase: build_core(resolved, phase), on_phase=on_phase)
    return EngineProcessClient(
        resolved.model_dump_json(),
        max_restarts=server.max_engine_restarts if server.on_engine_death == "restart" else 0,
        on_phase=on_phase,
    )


async def _started(client: EngineProcessClient | InProcessClient) -> bool:
    """Whether the engine got ready before a signal told us to stop."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stopped.set)
    start, stop = asyncio.ensure_future(client.start()), asyncio.ensure_future(stopped.wait())
    try:
        waits: list[asyncio.Future[Any]] = [start, stop]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            start.result()
            return True
        start.cancel()
        with contextlib.suppress(asyncio.CancelledError, EngineDead):
            await start
        return False
    finally:
        stop.cancel()
        for number in signals:
            loop.remove_signal_handler(number)


def _port(sockets: list[socket.socket]) -> int:
    """The one we got, where 0 was asked for; 0 for a Unix socket."""
    name = sockets[0].getsockname()
    return 0 if isinstance(name, str) else int(name[1])


def _resident_bytes(client: EngineProcessClient | InProcessClient) -> int | None:
    """Memory of the engine's process; None where the system does not tell."""
    try:
        return int(Path(f"/proc/{_pid(client)}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _peak_bytes(client: EngineProcessClient | InProcessClient) -> int | None:
    """The most memory that the engine's process has held; None where the system does not tell."""
    try:
        status = Path(f"/proc/{_pid(client)}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _pid(client: EngineProcessClient | InProcessClient) -> int | None:
    return client.pid if isinstance(client, EngineProcessClient) else os.getpid()


def _cause(error: EngineStartFailed) -> str:
    """The root cause as its own last word. For faults of ours the class says more than the message alone."""
    return error.reason if error.exit_code != EXIT_FAILED else f"{error.error}: {error.reason}"


def _fail(message: str, code: int) -> int:
    """The last thing on standard error. Diagnostics of a configuration carry their own `error[...]`."""
    tell(message if message.startswith("error[") else f"error: {message}")
    return code
