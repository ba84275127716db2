"""GET /metrics, /version and /load."""

from __future__ import annotations

from ...version import __version__
from ..endpoint import Call


async def metrics(call: Call) -> None:
    exported = call.service.metrics
    await call.answer(exported.render(), content_type=exported.content_type)


async def version(call: Call) -> None:
    await call.answer({"version": __version__})


async def load(call: Call) -> None:
    """Number of completions being generated now."""
    await call.answer({"server_load": call.service.shared.num_live})
