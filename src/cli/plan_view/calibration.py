"""Estimates and measurements of past starts as a table."""

from __future__ import annotations

from collections.abc import Sequence

from ...config.plan.calibration import Calibration, error_in_per_cent
from ...config.schema.types import format_about as about


def calibration_text(found: Sequence[Calibration]) -> str:
    """Estimate and measurement of every start, and the error in per cent."""
    lines = [f"{'date':<26}{'model':<28}{'dtype':<10}{'what':<11}{'planned':>12}{'measured':>12}{'error':>9}"]
    for entry in found:
        head = f"{entry.date:<26}{entry.model[-26:]:<28}{entry.dtype:<10}"
        for what, planned, measured in (
            ("weights", entry.planned_weights, entry.weights),
            ("KV cache", entry.planned_kv_cache, entry.kv_cache),
            ("resident", entry.planned_resident.likely, entry.resident),
            ("start peak", entry.planned_resident.likely, entry.peak),
        ):
            error = error_in_per_cent(planned, measured)
            said = "-" if measured is None else about(measured)
            off = "-" if error is None else f"{error:+.1f} %"
            lines.append(f"{head}{what:<11}{about(planned):>12}{said:>12}{off:>9}")
            head = " " * 64
    return "\n".join(lines)
