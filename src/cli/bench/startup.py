"""startup: starts and stops a deployment several times and measures the phases of the start."""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Sequence

from ... import __version__
from ...config import Resolved
from ...config.digest import digest
from ..console import is_coloured
from ..prepare import engine_client, interruptible, read, resolve_here, start_beside
from ..start import load_server
from ..startup_view import StartupView
from .figures import spread
from .measured import Measurement


def measure_startup(files: Sequence[str], overrides: Sequence[str], *, num_runs: int) -> Measurement:
    """The median of each phase; the first run also reads files that are not in the system's cache yet."""
    runs: list[dict[str, float]] = []
    totals: list[float] = []
    for number in range(num_runs):
        title = f"stoker {__version__}, start {number + 1} of {num_runs}"
        with StartupView(title, is_live=is_coloured(sys.stderr)) as view:
            deployment = read(files, overrides, view)
            resolved = resolve_here(deployment, view)
            view.begin("engine")
            asyncio.run(interruptible(_start(resolved, view)))
        runs.append(view.timings)
        totals.append(sum(seconds for name, seconds in view.timings.items() if ":" not in name))
    phases = {name: statistics.median(run.get(name, 0.0) for run in runs) for name in runs[-1]}
    return Measurement(
        model=resolved.model.model,
        config_hash=digest(deployment),
        results={**phases, "ready_s": spread(totals)},
        details={"runs": runs},
    )


async def _start(resolved: Resolved, view: StartupView) -> None:
    client = engine_client(resolved, view.part)
    try:
        _, seconds = await start_beside(client, lambda: load_server(resolved))
        view.beside("server", seconds)
        view.close()
    finally:
        await client.close()
