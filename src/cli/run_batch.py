"""`engine run-batch`: a file of requests, answered by the app that serves HTTP, and a file of results.

Results are written line by line as requests finish, to a `.part` file that is renamed to the output when it is
complete. If the run ends early, the file remains, and the same command continues from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Iterator, Sequence

from .. import __version__
from ..config import Resolved
from ..config.exit_codes import EXIT_ENVIRONMENT, EXIT_FAILED, EXIT_WRONG_COMMAND_LINE
from ..logs import configure_logging
from ..server.app import build_app
from ..server.batch.part_file import Counts, PartFile, PartFileInUse
from ..server.batch.run import Batch, EngineGone
from ..server.http.address import bind
from ..server.metrics_server import serving_metrics
from ..server.run import Text, load_text, log_stats
from ..server.service import Service
from .batch_files import BatchInput, BatchOutput, open_input, run_id, same_file
from .console import is_coloured, print_message, print_result
from .count_progress import count_progress
from .defaults import METRICS_HOST, METRICS_PORT
from .flags.serving import BatchFlags
from .prepare import (
    engine_client,
    fail,
    failing,
    interruptible,
    read,
    resolve_here,
)
from .server_url import base_url
from .startup_view import StartupView
from .transfer import TransferError, is_url, shown


def _settings(flags: BatchFlags) -> list[str]:
    """Flags that set options of the server, as words of a command line."""
    words = {
        "response-role": flags.response_role,
        "max-log-len": flags.max_log_len,
        "enable-prompt-tokens-details": flags.enable_prompt_tokens_details or None,
        "disable-log-stats": flags.disable_log_stats or None,
        "disable-access-log": flags.disable_log_requests or is_coloured(sys.stderr) or None,  # there is a bar
    }
    return [f"--server.{name}={value}" for name, value in words.items() if value is not None]


def _problem(flags: BatchFlags) -> str | None:
    if flags.output_file == "-" or ("://" in flags.output_file and not is_url(flags.output_file)):
        return "--output-file: give a file, or an http(s) URL that accepts PUT"
    if "://" in flags.input_file and not is_url(flags.input_file):
        return "--input-file: give a file, an http(s) URL, or - for standard input"
    if same_file(flags.input_file, flags.output_file):
        return "--output-file is the input file"
    if not flags.enable_metrics and (flags.url is not None or flags.port is not None):
        return "--url and --port are the address of the metrics: add --enable-metrics"
    return None


def _warnings(flags: BatchFlags) -> Iterator[str]:
    if flags.output_tmp_dir is not None and not is_url(flags.output_file):
        yield "--output-tmp-dir has no effect: --output-file is not a URL"
    if flags.use_v2_block_manager is not None:
        yield "--use-v2-block-manager is deprecated and has no effect: there is one block pool"


def run(files: Sequence[str], overrides: Sequence[str], flags: BatchFlags) -> int:
    """Returns the exit code: 0 if every line was a request, 1 if not, 130 after Ctrl-C."""
    if problem := _problem(flags):
        return fail(problem, EXIT_WRONG_COMMAND_LINE)
    for warning in _warnings(flags):
        print_message(f"warning: {warning}")

    def work() -> int:
        try:
            return _run(files, [*_settings(flags), *overrides], flags)
        except (TransferError, PartFileInUse) as error:
            return fail(str(error), EXIT_ENVIRONMENT)
        except EngineGone as error:
            return fail(str(error), EXIT_FAILED)

    return failing(work)


def _run(files: Sequence[str], overrides: Sequence[str], flags: BatchFlags) -> int:
    """Run the steps in an order that finds errors early."""
    with contextlib.ExitStack() as stack:
        view = stack.enter_context(StartupView(f"stoker {__version__}", is_live=is_coloured(sys.stderr)))
        deployment = read(files, overrides, view)
        view.begin("batch files")
        source = stack.enter_context(open_input(flags.input_file))
        sockets = _metrics_address(flags)
        for sock in sockets:
            stack.callback(sock.close)
        run = run_id(source, deployment)
        output = stack.enter_context(BatchOutput(flags.output_file, flags.output_tmp_dir, run))
        view.note(f"{source.num_requests} requests")
        began = time.monotonic()
        if len(output.part.done) < source.num_requests:
            resolved = resolve_here(deployment, view)
            if resolved.server.api_key:  # keys are for requests over the network
                server = resolved.server.model_copy(update={"api_key": ()})
                resolved = resolved.model_copy(update={"server": server})
            configure_logging(resolved.server)
            view.begin("tokenizer")
            text = load_text(resolved)
            view.begin("engine")
            asyncio.run(interruptible(_answer(resolved, text, source, output.part, run, sockets, view)))
        view.close()
        output.finish()
    counts = output.part.counts
    print_result(_summary(counts, time.monotonic() - began, flags.output_file))
    return EXIT_FAILED if counts.malformed else 0


def _metrics_address(flags: BatchFlags) -> list[socket.socket]:
    if not flags.enable_metrics:
        return []
    sockets = bind(flags.url or METRICS_HOST, METRICS_PORT if flags.port is None else flags.port)
    host, port = sockets[0].getsockname()[:2]
    print_message(f"metrics: {base_url(host, port)}/metrics")
    return sockets


async def _answer(
    resolved: Resolved,
    text: Text,
    source: BatchInput,
    part: PartFile,
    run: str,
    sockets: list[socket.socket],
    view: StartupView,
) -> None:
    client = engine_client(resolved, view.part)
    try:
        await client.start()
        view.close()
        service = Service(resolved, client, text.tokenizer, text.renderer, answers=text.answers)
        async with contextlib.AsyncExitStack() as stack:
            if sockets:
                await stack.enter_async_context(serving_metrics(service, sockets))
            if not resolved.server.disable_log_stats:
                stack.callback(asyncio.ensure_future(log_stats(service)).cancel)
            show_progress = stack.enter_context(count_progress("lines", source.num_requests, part.counts.total))
            configure_logging(resolved.server)  # again: a bar redirects standard error to the lines above it
            batch = Batch(
                service,
                build_app(service),
                source.file,
                part,
                run_id=run,
                concurrency=_concurrency(resolved),
                on_progress=lambda counts: show_progress(counts.total),
            )
            await batch.run()
    finally:
        await client.close()


def _concurrency(resolved: Resolved) -> int:
    """Twice a full batch: one running, one waiting."""
    scheduler = resolved.scheduler
    return resolved.topology.num_replicas * max(1, min(2 * scheduler.max_num_seqs, scheduler.max_queued_requests))


def _summary(counts: Counts, seconds: float, name: str) -> str:
    parts = [f"{counts.answered} answered"]
    if counts.refused:
        parts.append(f"{counts.refused} refused")
    if counts.malformed:
        parts.append(f"{counts.malformed} malformed or duplicate")
    return (
        f"{counts.total} lines: {', '.join(parts)}; {seconds:.1f} s\nresults: {shown(name) if is_url(name) else name}"
    )
