"""GET /config: the running configuration, with the origin of each value. The type of secrets hides their value."""

from __future__ import annotations

from ...config.diagnostics import FORMAT_VERSION
from ...config.effective import as_records, running_values
from ..endpoint import Call


async def config(call: Call) -> None:
    resolved = call.service.resolved
    await call.answer(
        {
            "format_version": FORMAT_VERSION,
            "hash": resolved.digest,
            "model": call.service.model_name,
            "values": as_records(running_values(resolved)),
            **({} if (code := resolved.model_files.code) is None else {"code": code.model_dump(mode="json")}),
        }
    )
