"""What the verbs that run a model share: the deployment read to its end, the engine, and how trouble is told."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from ..config import (
    Deployment,
    DeploymentError,
    Resolved,
    fetch_model,
    load_deployment,
    read_machine_facts,
    read_model_facts,
    resolve_deployment,
)
from ..config.errors import EXIT_ENVIRONMENT, EXIT_FAILED, EXIT_INVALID_CONFIGURATION, EXIT_MODEL_FILES
from ..engine.client import EngineStartFailed
from ..engine.in_process_client import InProcessClient
from ..engine.process_client import EngineProcessClient
from ..engine.startup import build_core, exit_code_of
from ..logs import LoggingProblem
from ..server.address import CannotListen
from .console import tell
from .startup_view import StartupView

Result = TypeVar("Result")


class Interrupted(Exception):
    """A signal ended the work."""

    def __init__(self, number: int) -> None:
        super().__init__("interrupted")
        self.exit_code = 128 + number


def read(files: Sequence[Path | str], overrides: Sequence[str], view: StartupView) -> Deployment:
    view.begin("configuration")
    view.note(", ".join(str(file) for file in files))
    return load_deployment(files, overrides)


def resolve_here(deployment: Deployment, view: StartupView) -> Resolved:
    """The model's files on this machine and every value decided. Warnings are told."""
    view.begin("model files")
    view.note(str(fetch_model(deployment)))
    resolved = resolve_deployment(deployment, read_model_facts(deployment), read_machine_facts())
    for warning in resolved.warnings:  # of the files and of the rules
        tell(warning)
    return resolved


def engine_client(resolved: Resolved, on_phase: Callable[[str], None]) -> EngineProcessClient | InProcessClient:
    """Not started yet."""
    server = resolved.server
    if server.disable_frontend_multiprocessing:
        return InProcessClient(lambda phase: build_core(resolved, phase), on_phase=on_phase)
    return EngineProcessClient(
        resolved.model_dump_json(),
        max_restarts=server.max_engine_restarts if server.on_engine_death == "restart" else 0,
        on_phase=on_phase,
    )


async def start_beside(client: EngineProcessClient | InProcessClient, work: Callable[[], Result]) -> Result:
    """Start the engine and meanwhile carry out `work` in a thread; what that returns. The first failure ends both."""
    tasks = [asyncio.ensure_future(asyncio.to_thread(work)), asyncio.ensure_future(client.start())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return cast(Result, tasks[0].result())


async def interruptible(work: Coroutine[Any, Any, Result]) -> Result:
    """Carry out `work`; at the first SIGINT or SIGTERM it is cancelled, and Interrupted raised once it has ended."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        task.cancel()

    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except (asyncio.CancelledError, Exception):  # what is cancelled may fail on its way out
        if received:
            raise Interrupted(received[0]) from None
        raise
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def failing(work: Callable[[], int]) -> int:
    """The exit code of `work`. What went wrong is the last thing on standard error, in its own words."""
    try:
        return work()
    except Interrupted as error:
        return fail("interrupted", error.exit_code)
    except DeploymentError as error:
        return fail(str(error), error.exit_code)
    except LoggingProblem as error:
        return fail(str(error), EXIT_INVALID_CONFIGURATION)
    except CannotListen as error:
        return fail(str(error), EXIT_ENVIRONMENT)
    except EngineStartFailed as error:  # for faults of ours the class says more than the message alone
        cause = error.reason if error.exit_code != EXIT_FAILED else f"{error.error}: {error.reason}"
        return fail(cause, error.exit_code)
    except (MemoryError, OSError) as error:
        return fail(str(error) or "out of memory", exit_code_of(error))
    except Exception as error:
        if (code := _server_exit_code(error)) is None:
            raise
        return fail(str(error), code)


def _server_exit_code(error: Exception) -> int | None:
    """Of what only the server raises. Its modules take half a second to load: by now they are, or it raised nothing."""
    from ..server.middleware import MiddlewareProblem
    from ..server.text.renderer import TemplateProblem
    from ..server.text.tokenizer import TokenizerError
    from ..server.tls import TlsProblem

    if isinstance(error, TokenizerError | TemplateProblem):
        return EXIT_MODEL_FILES
    if isinstance(error, MiddlewareProblem):
        return EXIT_INVALID_CONFIGURATION
    return EXIT_ENVIRONMENT if isinstance(error, TlsProblem) else None


def fail(message: str, code: int) -> int:
    """Diagnostics of a configuration carry their own `error[...]`."""
    tell(message if message.startswith("error[") else f"error: {message}")
    return code
