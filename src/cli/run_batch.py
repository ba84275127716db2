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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

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
from .defaults import METRICS_HOST, METRICS_PORT
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

REPORT_INTERVAL_S = 10.0


@dataclass(frozen=True, kw_only=True)
class BatchFlags:
    """The verb's own flags; None or False if not given."""

    input_file: str
    output_file: str
    output_tmp_dir: str | None = None
    response_role: str | None = None
    enable_metrics: bool = False
    url: str | None = None
    port: int | None = None
    enable_prompt_tokens_details: bool = False
    max_log_len: int | None = None
    disable_log_requests: bool = False
    disable_log_stats: bool = False
    use_v2_block_manager: bool | None = None

    def overrides(self) -> list[str]:
        """Flags that set options of the server, as words of a command line."""
        words = {
            "response-role": self.response_role,
            "max-log-len": self.max_log_len,
            "enable-prompt-tokens-details": self.enable_prompt_tokens_details or None,
            "disable-log-stats": self.disable_log_stats or None,
            "disable-access-log": self.disable_log_requests or None,
        }
        return [f"--server.{name}={value}" for name, value in words.items() if value is not None]

    def problem(self) -> str | None:
        if self.output_file == "-" or ("://" in self.output_file and not is_url(self.output_file)):
            return "--output-file: give a file, or an http(s) URL that accepts PUT"
        if "://" in self.input_file and not is_url(self.input_file):
            return "--input-file: give a file, an http(s) URL, or - for standard input"
        if same_file(self.input_file, self.output_file):
            return "--output-file is the input file"
        if not self.enable_metrics and (self.url is not None or self.port is not None):
            return "--url and --port are the address of the metrics: add --enable-metrics"
        return None

    def warnings(self) -> Iterator[str]:
        if self.output_tmp_dir is not None and not is_url(self.output_file):
            yield "--output-tmp-dir has no effect: --output-file is not a URL"
        if self.use_v2_block_manager is not None:
            yield "--use-v2-block-manager is deprecated and has no effect: there is one block pool"


def run(files: Sequence[str], overrides: Sequence[str], flags: BatchFlags) -> int:
    """Returns the exit code: 0 if every line was answered, 1 if not, 130 after Ctrl-C."""
    if problem := flags.problem():
        return fail(problem, EXIT_WRONG_COMMAND_LINE)
    for warning in flags.warnings():
        print_message(f"warning: {warning}")

    def work() -> int:
        try:
            return _run(files, [*overrides, *flags.overrides()], flags)
        except (TransferError, PartFileInUse) as error:
            return fail(str(error), EXIT_ENVIRONMENT)
        except EngineGone as error:
            return fail(str(error), EXIT_FAILED)

    return failing(work)


def _run(files: Sequence[str], overrides: Sequence[str], flags: BatchFlags) -> int:
    """In an order that finds errors early."""
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
    return EXIT_FAILED if counts.refused or counts.malformed else 0


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
            on_progress = stack.enter_context(_progress(source.num_requests, part.counts, resolved))
            batch = Batch(
                service,
                build_app(service),
                source.file,
                part,
                run_id=run,
                concurrency=_concurrency(resolved),
                on_progress=on_progress,
            )
            await batch.run()
    finally:
        await client.close()


def _concurrency(resolved: Resolved) -> int:
    """Twice a full batch: one running, one waiting."""
    scheduler = resolved.scheduler
    return len(resolved.parallel.ranks) * max(1, min(2 * scheduler.max_num_seqs, scheduler.max_queued_requests))


@contextlib.contextmanager
def _progress(total: int, counts: Counts, resolved: Resolved) -> Iterator[Callable[[Counts], None]]:
    """A progress bar on a terminal; elsewhere a line at intervals."""
    if not is_coloured(sys.stderr):
        reported_at = [time.monotonic()]

        def report_progress(counts: Counts) -> None:
            if time.monotonic() - reported_at[0] >= REPORT_INTERVAL_S:
                reported_at[0] = time.monotonic()
                print_message(f"{counts.total} of {total} lines done")

        yield report_progress
        return
    columns = (TextColumn("lines"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        configure_logging(resolved.server)  # again: with the bar, standard error is redirected above it
        task = bar.add_task("", total=total, completed=counts.total)
        yield lambda counts: bar.update(task, completed=counts.total)


def _summary(counts: Counts, seconds: float, name: str) -> str:
    parts = [f"{counts.answered} answered"]
    parts += [f"{counts.refused} refused"] * bool(counts.refused)
    parts += [f"{counts.malformed} malformed or duplicate"] * bool(counts.malformed)
    return (
        f"{counts.total} lines: {', '.join(parts)}; {seconds:.1f} s\nresults: {shown(name) if is_url(name) else name}"
    )
