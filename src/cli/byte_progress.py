"""A bar of bytes that are read or written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


@contextmanager
def byte_progress(total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, if that is a terminal. Yields what to call with the number of bytes done since."""
    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("weights"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
