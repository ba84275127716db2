"""A plan as text: the result first, then the memory, how much fits, and what would help."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence

from ...config.plan.plan import Plan
from ...config.plan.text import TextForms
from ...config.schema.types import format_about as about
from .devices import device_rows
from .memory import memory_rows
from .model import model_rows
from .outlook import capacity_rows, change_rows, speed_rows
from .processes import numa_rows, process_rows

_INDENT = 14
_NO_LIMIT = 1 << 30  # characters of a line


def plan_text(
    plan: Plan,
    forms: TextForms,
    decided: Sequence[tuple[str, str, str]],
    name: str,
    screen: os.terminal_size | None = None,
) -> str:
    """screen: lines are wrapped for it, and a text that is longer than it ends with the result again."""
    width = screen.columns if screen is not None else _NO_LIMIT
    lines = result = _result(plan, name, width)
    for title, rows in (
        ("devices", device_rows(plan)),
        ("model", model_rows(plan, forms)),
        ("memory", [*process_rows(plan), *memory_rows(plan)]),
        ("NUMA nodes", numa_rows(plan)),
        ("capacity", capacity_rows(plan)),
        ("speed (estimate)", speed_rows(plan)),
        ("kernels", list(plan.kernels.items())),
        ("decided for you", [(path, f"{value}  ({why})") for path, value, why in decided]),
        ("cheapest changes", change_rows(plan)),
        ("notes", [("-", note) for note in plan.notes]),
    ):
        if rows:
            least = 3 if title in ("notes", "cheapest changes", "devices") else _INDENT
            column = max(least - 1, *(len(label) for label, _ in rows)) + 1
            is_table = title in ("devices", "capacity")
            lines = [*lines, "", title]
            for label, value in rows:
                lines += _wrapped(f"  {label:<{column}}{value}".rstrip(), column + 2, _NO_LIMIT if is_table else width)
    if screen is not None and len(lines) >= screen.lines:
        lines = [*lines, "", *result, *_wrapped(f"  {_summary(plan)}", 2, width)]
    return "\n".join(lines)


def _result(plan: Plan, name: str, width: int) -> list[str]:
    lines = _wrapped(f"{name or plan.model.name} on {plan.device.shown}: {plan.verdict}", 2, width)
    return [*lines, *_wrapped(f"  {plan.estimate.reason}", 2, width)] if plan.estimate.reason else lines


def _summary(plan: Plan) -> str:
    found = plan.estimate
    used = f"weights {about(found.weights_bytes)}, KV cache {about(found.kv_cache_bytes)}"
    return f"{used}; together about {about(found.peak.likely)} of {about(found.memory_bytes)}"


def _wrapped(line: str, indent: int, width: int) -> list[str]:
    """The line in parts of at most `width` characters, all but the first indented."""
    if len(line) <= width:
        return [line]
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
        drop_whitespace=True,
    )
