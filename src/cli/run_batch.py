"""`engine run-batch`: a file of requests through the same app that serves them over HTTP, and a file of results.

Results are written as they come, each a whole line, to a `.part` file that gets the output's name once the last one is
there. What ends the run early leaves it, and the same command goes on from it.
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
from ..config.errors import EXIT_ENVIRONMENT, EXIT_FAILED, EXIT_WRONG_COMMAND_LINE
from ..logs import configure_logging
from ..server.address import bind
from ..server.app import build_app
from ..server.batch.part_file import Counts, PartFile, PartFileInUse
from ..server.batch.run import Batch, EngineGone
from ..server.metrics_server import serving_metrics
from ..server.run import Text, load_text, log_stats
from ..server.service import Service
from .batch_files import BatchInput, BatchOutput, open_input, run_id, same_file
from .console import is_coloured, say, tell
from .prepare import (
    engine_client,
    fail,
    failing,
    interruptible,
    read,
    resolve_here,
)
from .startup_view import StartupView
from .summary import base_url
from .transfer import TransferError, is_url, shown

METRICS_HOST, METRICS_PORT = "0.0.0.0", 8000
REPORT_INTERVAL_S = 10.0


@dataclass(frozen=True, kw_only=True)
class BatchFlags:
    """The verb's own flags; None and False where they are not given."""

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
        """Those that say what an option of the server says, in its words."""
        words = {
            "response-role": self.response_role,
            "max-log-len": self.max_log_len,
            "enable-prompt-tokens-details": self.enable_prompt_tokens_details or None,
            "disable-log-stats": self.disable_log_stats or None,
            "disable-uvicorn-access-log": self.disable_log_requests or None,
        }
        return [f"--server.{name}={value}" for name, value in words.items() if value is not None]

    def problem(self) -> str | None:
        if self.output_file == "-" or ("://" in self.output_file and not is_url(self.output_file)):
            return "--output-file: name a file, or an http(s) URL that takes PUT"
        if "://" in self.input_file and not is_url(self.input_file):
            return "--input-file: name a file, an http(s) URL, or - for standard input"
        if same_file(self.input_file, self.output_file):
            return "--output-file is the input file"
        if not self.enable_metrics and (self.url is not None or self.port is not None):
            return "--url and --port are the address of the metrics: add --enable-metrics"
        return None

    def warnings(self) -> Iterator[str]:
        if self.output_tmp_dir is not None and not is_url(self.output_file):
            yield "--output-tmp-dir has no effect: --output-file is no URL"
        if self.use_v2_block_manager is not None:
            yield "--use-v2-block-manager is deprecated and has no effect: there is one block pool"


def run(files: Sequence[str], overrides: Sequence[str], flags: BatchFlags) -> int:
    """Returns the exit code: 0 if every line was answered, 1 if not, 130 after Ctrl-C."""
    if problem := flags.problem():
        return fail(problem, EXIT_WRONG_COMMAND_LINE)
    for warning in flags.warnings():
        tell(f"warning: {warning}")

    def work() -> int:
        try:
            return _run(files, [*overrides, *flags.overrides()], flags)
        except (TransferError, PartFileInUse) as error:
            return fail(str(error), EXIT_ENVIRONMENT)
        except EngineGone as error:
            return fail(str(error), EXIT_FAILED)

    return failing(work)


def _run(files: Sequence[str], overrides: Sequence[str], flags: BatchFlags) -> int:
    """In the order in which mistakes are cheap to find."""
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
            if resolved.server.api_key:  # keys are for those who come over the network
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
    say(_summary(counts, time.monotonic() - began, flags.output_file))
    return EXIT_FAILED if counts.refused or counts.malformed else 0


def _metrics_address(flags: BatchFlags) -> list[socket.socket]:
    if not flags.enable_metrics:
        return []
    sockets = bind(flags.url or METRICS_HOST, METRICS_PORT if flags.port is None else flags.port)
    host, port = sockets[0].getsockname()[:2]
    tell(f"metrics: {base_url(host, port)}/metrics")
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
        service = Service(resolved, client, *text)
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
    """A full batch, and as much again waiting for its turn."""
    scheduler = resolved.scheduler
    return max(1, min(2 * scheduler.max_num_seqs, scheduler.max_queued_requests))


@contextlib.contextmanager
def _progress(total: int, counts: Counts, resolved: Resolved) -> Iterator[Callable[[Counts], None]]:
    """A bar on a terminal, elsewhere a line now and then."""
    if not is_coloured(sys.stderr):
        told_at = [time.monotonic()]

        def tell_progress(counts: Counts) -> None:
            if time.monotonic() - told_at[0] >= REPORT_INTERVAL_S:
                told_at[0] = time.monotonic()
                tell(f"{counts.total} of {total} lines done")

        yield tell_progress
        return
    columns = (TextColumn("lines"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        configure_logging(resolved.server)  # again: while the bar is there, standard error is a place above it
        task = bar.add_task("", total=total, completed=counts.total)
        yield lambda counts: bar.update(task, completed=counts.total)


def _summary(counts: Counts, seconds: float, name: str) -> str:
    parts = [f"{counts.answered} answered"]
    parts += [f"{counts.refused} refused"] * bool(counts.refused)
    parts += [f"{counts.malformed} malformed or duplicate"] * bool(counts.malformed)
    return (
        f"{counts.total} lines: {', '.join(parts)}; {seconds:.1f} s\nresults: {shown(name) if is_url(name) else name}"
    )
