"""startup: a deployment read, its engine process started and stopped again, so many times; the time of each phase."""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Sequence

from ... import __version__
from ...config import Resolved
from ...config.effective import digest
from ..console import is_coloured
from ..prepare import engine_client, interruptible, read, resolve_here, start_beside
from ..startup_view import StartupView
from ..up import load_server
from .figures import spread
from .measured import Measurement


def measure_startup(files: Sequence[str], overrides: Sequence[str], *, num_runs: int) -> Measurement:
    """Each phase by its median; the first run also pays for files that the system has not read yet."""
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
        facts={"runs": runs},
    )


async def _start(resolved: Resolved, view: StartupView) -> None:
    client = engine_client(resolved, view.part)
    try:
        _, seconds = await start_beside(client, lambda: load_server(resolved))
        view.beside("server", seconds)
        view.close()
    finally:
        await client.close()
