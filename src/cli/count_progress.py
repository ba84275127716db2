"""How many of a number of things are done: a bar on a terminal, and elsewhere a line at intervals."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .console import is_coloured, print_message

REPORT_INTERVAL_S = 10.0


@contextmanager
def count_progress(
    name: str, total: int, done: int = 0, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int], None]]:
    """Yields what to call with the number that is done, in any thread. name: in the plural."""
    if is_coloured(sys.stderr):
        columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("", total=total, completed=done)
            yield lambda count: bar.update(task, completed=count)
        return
    reported_at = clock()

    def report(count: int) -> None:
        nonlocal reported_at
        if clock() - reported_at >= REPORT_INTERVAL_S:
            reported_at = clock()
            print_message(f"{count} of {total} {name} done")

    yield report
