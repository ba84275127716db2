"""GET /config: the running configuration, with the meaning and the origin of each value.

The type of secrets hides their value.
"""

from __future__ import annotations

from ...config.diagnostics import FORMAT_VERSION
from ...config.effective import as_records, running_values
from ...formats.detect import Detection
from ..endpoint import Call


def answers_of(found: Detection | None) -> dict[str, str] | None:
    """The format of answers, and why."""
    if found is None:
        return None
    return {
        "tool_calls": found.calls,
        "tool_calls_why": found.calls_why,
        "reasoning": found.reasoning,
        "reasoning_why": found.reasoning_why,
    }


async def config(call: Call) -> None:
    resolved = call.service.resolved
    values = running_values(resolved)
    described = [
        {**record, "description": entry.option.description}
        for record, entry in zip(as_records(values), values, strict=True)
    ]
    await call.answer(
        {
            "format_version": FORMAT_VERSION,
            "hash": resolved.digest,
            "model": call.service.model_name,
            "answers": answers_of(call.service.answers),
            "values": described,
            **({} if (code := resolved.model_files.code) is None else {"code": code.model_dump(mode="json")}),
        }
    )
