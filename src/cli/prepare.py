"""Shared by the verbs that run a model: reading and resolving the deployment, the engine, and reporting of errors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..config import (
    Deployment,
    DeploymentError,
    Resolved,
    fetch_model,
    load_deployment,
    read_machine_spec,
    read_model_files,
    resolve_deployment,
)
from ..config.exit_codes import EXIT_ENVIRONMENT, EXIT_FAILED, EXIT_INVALID_CONFIGURATION, EXIT_MODEL_FILES
from ..config.resolve.gpu import own_gpus
from ..engine.client.child import Child
from ..engine.client.engine_client import EngineClient, EngineStartFailed
from ..engine.client.in_process import InProcessClient
from ..engine.client.no_engine import NoEngine
from ..engine.client.process import COMMAND, EngineProcessClient
from ..engine.client.replicated import ReplicatedClient
from ..engine.client.sleep import SleepPolicy
from ..engine.executor.build import build_core, exit_code_of
from ..engine.host.on_node import on_node
from ..engine.replicas.group import ReplicaGroup
from ..engine.transport.messages import Message
from ..logs import LoggingProblem
from ..server.http.address import CannotListen
from ..stop_signals import stop_signals
from .console import print_message
from .startup_view import StartupView

if TYPE_CHECKING:
    from ..engine.replicas.remote import RemoteReplicas

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
    """Download the model if necessary and decide every value. Prints warnings."""
    view.begin("model files")
    view.note(str(fetch_model(deployment, view.note)))
    resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
    for warning in resolved.warnings:  # of the files and of the rules
        print_message(warning)
    return resolved


def engine_client(resolved: Resolved, on_phase: Callable[[str], None]) -> EngineClient:
    """The client of an engine, or of several, that are not started yet; of none if the server has none."""
    if not resolved.server.has_engine:
        return NoEngine(resolved)
    if resolved.server.disable_frontend_multiprocessing:
        return InProcessClient(lambda phase: build_core(resolved, phase, may_compile_later=True), on_phase=on_phase)
    on_ray = resolved.topology.are_replicas_on_ray
    replicas = {} if on_ray else engine_processes(resolved, on_phase)
    if resolved.topology.remote_replicas:
        return _with_remote(resolved, replicas, on_phase)
    return next(iter(replicas.values())) if len(replicas) == 1 else ReplicatedClient(replicas)


def _with_remote(
    resolved: Resolved, replicas: dict[int, EngineProcessClient], on_phase: Callable[[str], None]
) -> ReplicatedClient:
    """The replicas of this machine, and the replicas that others run for this server."""
    from ..engine.replicas.remote import RemoteChild

    remote = _remote_replicas(resolved, on_phase)
    for rank in resolved.topology.remote_replicas:
        replicas[rank] = EngineProcessClient(
            "",
            max_restarts=resolved.server.engine_restarts,
            on_phase=on_phase if not replicas else None,
            sleep_policy=_sleep_policy(resolved),
            child_of=partial(RemoteChild, remote, rank),
        )
    return ReplicatedClient(replicas, remote.close)


def _remote_replicas(resolved: Resolved, on_phase: Callable[[str], None]) -> RemoteReplicas:
    topology = resolved.topology
    if topology.are_replicas_on_ray:
        from ..engine.replicas.on_ray import RayReplicas

        return RayReplicas(resolved, on_phase)
    from ..engine.cluster.fingerprint import fingerprint
    from ..engine.cluster.limits import silence_of
    from ..engine.cluster.secret import secret_hash
    from ..engine.replicas.remote import RemoteReplicas

    assert topology.api is not None, "there are no remote replicas without it"
    ranks, silence_s = topology.remote_replicas, silence_of(resolved.parallel)
    return RemoteReplicas(*topology.api, ranks, fingerprint(resolved), secret_hash(), silence_s)


def _sleep_policy(resolved: Resolved) -> SleepPolicy:
    return SleepPolicy(resolved.model.sleep_after, resolved.model.sleep_level)


def engine_environment(resolved: Resolved, index: int) -> dict[str, str]:
    """Environment of an engine process. index: of its replica on this machine."""
    own = {name: value for name, value in os.environ.items() if name not in resolved.secret_variables}
    return {**own, **device_variables(resolved, index)}


def engine_processes(resolved: Resolved, on_phase: Callable[[str], None]) -> dict[int, EngineProcessClient]:
    """One client for each replica of this machine, by rank. The first reports its phases; all have the same."""
    server, ranks = resolved.server, resolved.topology.replicas
    child_of = _children_in_group(resolved) if resolved.shares_experts else {}
    return {
        rank: EngineProcessClient(
            resolved.replica(rank).model_dump_json(),
            environment=engine_environment(resolved, index),
            command=on_node(resolved.replica(rank), 0, COMMAND),
            max_restarts=server.engine_restarts,
            on_phase=on_phase if not index else None,
            is_shared=server.api_server_count > 1,
            sleep_policy=_sleep_policy(resolved),
            child_of=child_of.get(rank),
        )
        for index, rank in enumerate(ranks)
    }


def _children_in_group(resolved: Resolved) -> dict[int, Callable[[Callable[[Message], None]], Child]]:
    """What makes a start of each replica that shares experts."""
    ranks, is_shared = resolved.topology.replicas, resolved.server.api_server_count > 1
    configs = {rank: resolved.replica(rank).model_dump_json() for rank in ranks}
    environments = {rank: engine_environment(resolved, index) for index, rank in enumerate(ranks)}
    commands = {rank: on_node(resolved.replica(rank), 0, COMMAND) for rank in ranks}
    group = ReplicaGroup(commands, configs, environments)
    return {rank: partial(group.child, rank, is_shared=is_shared) for rank in ranks}


def device_variables(resolved: Resolved, index: int) -> dict[str, str]:
    """Variables that give a replica its own GPUs. index: of the replica in this server."""
    if not resolved.uses_gpus or resolved.topology.num_replicas == 1:
        return {}
    num_ranks = resolved.topology.num_ranks
    return own_gpus(index * num_ranks, num_ranks)


async def start_beside(client: EngineClient, work: Callable[[], Result]) -> Result:
    """Start the engine and run `work` in a thread meanwhile; returns its result. The first failure ends both."""
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
    """Run `work`; the first signal that stops a server cancels it, and Interrupted is raised after it has ended."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        task.cancel()

    signals = stop_signals()
    for number in signals:
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except (asyncio.CancelledError, Exception):  # cancelled work may fail while it ends
        if received:
            raise Interrupted(received[0]) from None
        raise
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def failing(work: Callable[[], int]) -> int:
    """The exit code of `work`. An error is printed as the last message on standard error."""
    try:
        return work()
    except Interrupted as error:
        return fail("interrupted", error.exit_code)
    except DeploymentError as error:
        return fail(str(error), error.exit_code)
    except LoggingProblem as error:
        return fail(str(error), EXIT_INVALID_CONFIGURATION)
    except CannotListen as error:
        fix = "\n  = fix: stop that process, or choose another address with --port or --uds" if error.is_in_use else ""
        return fail(f"{error}{fix}", EXIT_ENVIRONMENT)
    except EngineStartFailed as error:  # for internal errors the class is more informative than the message alone
        cause = error.reason if error.exit_code != EXIT_FAILED else f"{error.error}: {error.reason}"
        return fail(cause, error.exit_code)
    except BrokenPipeError:  # the reader of the results closed the pipe: main() knows what to do
        raise
    except (MemoryError, OSError) as error:
        return fail(str(error) or "out of memory", exit_code_of(error))
    except Exception as error:
        if (code := _server_exit_code(error)) is None:
            raise
        return fail(str(error), code)


def _server_exit_code(error: Exception) -> int | None:
    """Exit code for an error of the server, else None. Importing the server's modules takes half a second, but they are
    loaded if it raised an error."""
    from ..server.access.keys_file import KeysProblem
    from ..server.http.middleware import MiddlewareProblem
    from ..server.http.tls import TlsProblem
    from ..server.observe.tracing import TracingProblem
    from ..server.stored.store import StoreProblem
    from ..server.tool_server.servers import ToolServersProblem
    from ..text.answer_format import FormatProblem
    from ..text.renderer import TemplateProblem
    from ..vocabulary import TokenizerError

    if isinstance(error, TokenizerError | TemplateProblem):
        return EXIT_MODEL_FILES
    if isinstance(error, KeysProblem | MiddlewareProblem | FormatProblem):
        return EXIT_INVALID_CONFIGURATION
    is_of_machine = isinstance(error, TlsProblem | ToolServersProblem | TracingProblem | StoreProblem)
    return EXIT_ENVIRONMENT if is_of_machine else None


def fail(message: str, code: int) -> int:
    """Diagnostics of a configuration begin with `error[...]` already."""
    print_message(message if message.startswith("error[") else f"error: {message}")
    return code
