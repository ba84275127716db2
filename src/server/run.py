"""Runs a deployment's server: loads tokenizer and template, builds the app, listens, and stops if the engine does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ..config import Resolved
from ..config.open_files import raise_limit
from ..engine.client.engine_client import EngineClient, EngineState
from ..formats.detect import Detection
from ..isolated.isolation import IsolatedProcesses
from ..logs import log_fields
from ..text.answer_format import decide_format
from ..text.renderer import Renderer
from ..text.tokenizer import Tokenizer
from .access.keys_file import read_keys
from .access.shared_state import SharedState
from .app import build_app
from .files.runner import BatchRunner
from .full_collections import FullCollections
from .http.admission import Admission
from .http.middleware import load_middleware
from .http.serve import serve
from .http.shutdown import Shutdown
from .http.tls import Tls, TlsFiles, load_context
from .in_process import App
from .request_jobs import REQUEST_JOBS
from .service import Service
from .stored.store import Limits, open_store
from .tool_server.servers import ToolServersProblem, headers_of

STATS_INTERVAL_S = 10.0
SWITCH_INTERVAL_S = 0.001
_WATCH_INTERVAL_S = 0.2
logger = logging.getLogger(__name__)


class Text(NamedTuple):
    """Tokenizer, chat template, and the format of answers. All None with skip_tokenizer_init."""

    tokenizer: Tokenizer | None = None
    renderer: Renderer | None = None
    answers: Detection | None = None


def load_text(resolved: Resolved, processes: IsolatedProcesses | None = None) -> Text:
    """The tokenizer, the compiled chat template and the format of answers.

    Logs a warning if the template cannot render a simple message, or if it is not of the format. Raises TokenizerError,
    TemplateProblem or FormatProblem. Called before the weights are loaded, so that these errors show early.
    """
    if resolved.model.skip_tokenizer_init:
        return Text()
    processes = processes or IsolatedProcesses(REQUEST_JOBS)
    processes.start()  # while the tokenizer loads
    tokenizer = Tokenizer.load(resolved.model.tokenizer, resolved.model.tokenizer_mode)
    renderer = Renderer(
        tokenizer,
        resolved.chat_template,
        content_format=resolved.server.chat_template_content_format,
        default_kwargs=resolved.server.default_chat_template_kwargs,
        processes=processes,
        reads_control_tokens=resolved.server.parse_special_tokens_in_content,
    )
    if unused := renderer.unused_defaults():
        names = ", ".join(f"`{name}`" for name in unused)
        logger.warning("`server.default_chat_template_kwargs`: the chat template does not use %s", names)
    if problem := renderer.problem():
        logger.warning("no chat request will succeed: %s", problem)
    answers = decide_format(
        resolved.server.tool_call_parser,
        resolved.server.tool_parser_plugin,
        resolved.structured_outputs.reasoning_parser,
        "\n".join(source.text for source in renderer.sources.values()),
        resolved.model_files.spec.architecture,
        renderer.render_golden,
    )
    for warning in answers.warnings:
        logger.warning("%s", warning)
    return Text(tokenizer, renderer, answers)


def check_server(resolved: Resolved) -> None:
    """Check keys, TLS files, the store of responses and middleware before the weights are loaded.

    Raises KeysProblem, TlsProblem, ToolServersProblem, StoreProblem or MiddlewareProblem.
    """
    if resolved.server.tool_server and find_spec("mcp") is None:
        raise ToolServersProblem("`server.tool_server` needs the package mcp: install the extra `mcp`")
    for label, each in resolved.server.tool_server.items():
        headers_of(label, each)
    if resolved.server.api_keys_file is not None:
        read_keys(resolved.server.api_keys_file)
    if files := TlsFiles.of(resolved.server):
        load_context(files)
    if (store := resolved.server.responses_store) is not None:
        open_store(store, Limits.of(resolved.server)).close()
    load_middleware(resolved.server.middleware)


async def run_server(
    resolved: Resolved,
    client: EngineClient,
    text: Text,
    sockets: list[socket.socket],
    shutdown: Shutdown | None = None,
    *,
    on_listening: Callable[[], None] = lambda: None,
    exit_hard: bool = True,
    shared: SharedState | None = None,
) -> int:
    """Serve until a shutdown is requested. Returns the exit code: 0, or 1 if the engine will not be started again.

    client: already started. text: from `load_text`. sockets: from `take_address`.
    shared: with the other API processes that accept connections from these sockets; None if there is one.
    Raises KeysProblem, TlsProblem, StoreProblem or MiddlewareProblem, unless `check_server` was called before;
    ModelFilesError for an adapter of the deployment that the engine cannot use.
    """
    shutdown = shutdown or Shutdown()
    settings = resolved.server
    served: list[int] = []  # the exit code, at the end of the service: later the caller closes the engine

    def exit_code() -> int:
        return served[0] if served else int(client.state is EngineState.DEAD)

    def listening() -> None:
        on_listening()
        service.long_bodies.start()  # now, so that the start of the server does not wait for it

    raise_limit()
    # A thread that computes delays the event loop by this at each of its system calls. By default it is 5 ms.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    service = Service(
        resolved,
        client,
        text.tokenizer,
        text.renderer,
        answers=text.answers,
        is_draining=shutdown.requested.is_set,
        shared=shared,
    )
    if service.process_index == 0:
        await service.adapters.start()
    files = TlsFiles.of(resolved.server)
    tls = Tls(files) if files else None
    app = build_app(service)
    watchers = [_stop_when_dead(client, shutdown), _report_stop(service, shutdown)]
    if tls is not None and settings.enable_ssl_refresh:
        watchers.append(tls.watch())
    async with background_work(service, app, *watchers):
        await serve(
            app,
            sockets,
            shutdown,
            end_streams=service.live.end_all,
            drain_timeout=settings.drain_timeout,
            send_stall_timeout=settings.send_stall_timeout,
            max_incomplete_bytes=settings.max_incomplete_header_bytes,
            admission=Admission(
                service.share_of(settings.max_connections), service.share_of(settings.max_connections_per_client)
            ),
            is_shared=service.shared.num_processes > 1,
            tls=tls,
            on_listening=listening,
            exit_hard=exit_hard,
            exit_code=exit_code,
        )
    served.append(exit_code())
    log_fields(logger, logging.INFO, "stopped", {"cause": shutdown.cause, "exit_code": served[0]})
    return served[0]


@contextlib.asynccontextmanager
async def background_work(service: Service, app: App, *further: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """What runs beside the requests during the block: batches, full garbage collections, log lines of statistics, the
    keys file, and `further`.

    Closes what the service holds at the end.
    """
    settings = service.settings
    collections = FullCollections(lambda: len(service.live))
    tasks = [asyncio.ensure_future(each) for each in (collections.run(), *further)]
    if settings.files_dir is not None and settings.has_engine:
        tasks.append(asyncio.ensure_future(BatchRunner(service, app, Path(settings.files_dir)).run()))
    if not settings.disable_log_stats and service.process_index == 0:
        tasks.append(asyncio.ensure_future(log_stats(service)))
    if service.keys_file is not None:
        tasks.append(asyncio.ensure_future(service.keys_file.watch()))
    try:
        yield
    finally:
        if service.tracing is not None:
            await asyncio.to_thread(service.tracing.close)
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if service.tool_servers is not None:
            await service.tool_servers.close()
        if service.prefill_servers is not None:
            await service.prefill_servers.close()
        if service.responses is not None:
            await asyncio.to_thread(service.responses.close)


async def _stop_when_dead(client: EngineClient, shutdown: Shutdown) -> None:
    while client.state is not EngineState.DEAD:  # noqa: ASYNC110 (the client's state can only be polled)
        await asyncio.sleep(_WATCH_INTERVAL_S)
    log_fields(logger, logging.ERROR, "the engine will not be started again: stopping", {"reason": client.reason})
    shutdown.request("the engine will not be started again")
    shutdown.cut.set()  # without a drain: no request can continue


async def _report_stop(service: Service, shutdown: Shutdown) -> None:
    await shutdown.requested.wait()
    requests, drain_s = len(service.live), service.settings.drain_timeout
    message = "stopping: running requests may finish" if requests and not shutdown.cut.is_set() else "stopping"
    fields = {"cause": shutdown.cause, "requests": requests, "drain_timeout": f"{drain_s:g}s"}
    log_fields(logger, logging.INFO, message, fields)


async def log_stats(service: Service) -> None:
    """One log line for each interval in which the engine worked."""
    stats = service.client.stats
    generated = service.metrics.num_generated
    while True:
        await asyncio.sleep(STATS_INTERVAL_S)
        before, stats = stats, service.client.stats
        before_generated, generated = generated, service.metrics.num_generated
        idle = stats.num_steps == before.num_steps and not stats.num_running and not stats.num_waiting
        if idle and generated == before_generated:  # the last tokens are counted after the last step
            continue
        queries = stats.prefix_queries - before.prefix_queries
        fields = {
            "running": stats.num_running,
            "waiting": stats.num_waiting,
            # 0 blocks: a restarted engine has not reported statistics yet
            "kv_used": f"{100 * (1 - stats.num_free_blocks / stats.num_blocks):.0f}%" if stats.num_blocks else "-",
            "generated_tokens_per_s": (generated - before_generated) / STATS_INTERVAL_S,
            "prefix_hits": f"{100 * (stats.prefix_hits - before.prefix_hits) / queries:.0f}%" if queries > 0 else "-",
            "preemptions": stats.num_preemptions - before.num_preemptions,
        }
        if stats.drafts is not None and before.drafts is not None:
            drafted = stats.drafts.tokens - before.drafts.tokens
            accepted = sum(stats.drafts.accepted) - sum(before.drafts.accepted)
            fields["drafts_accepted"] = f"{accepted} of {drafted}"
        log_fields(logger, logging.INFO, "engine", fields)
