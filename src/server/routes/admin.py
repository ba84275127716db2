"""POST /reset_prefix_cache, for operators, and GET /server_info."""

from __future__ import annotations

from dataclasses import asdict

from ...config.effective import as_records, running_values
from ...version import __version__
from ..endpoint import Call


async def reset_prefix_cache(call: Call) -> None:
    """Later requests reuse nothing that was computed before; running ones are not affected."""
    call.service.new_cache_epoch()
    await call.answer({"status": "ok"})


async def server_info(call: Call) -> None:
    """Version, configuration and engine in one answer."""
    service = call.service
    info = asdict(service.engine_info)
    await call.answer(
        {
            "version": __version__,
            "model": service.model_name,
            "state": service.client.state.value,
            "engine": {name: value for name, value in info.items() if name != "model"},
            "config": as_records(running_values(service.resolved)),
        }
    )
