"""Lists of CPUs in the notation of Linux: `0-3,8` are 0, 1, 2, 3 and 8."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_CPU = 8191  # the kernel's own limit
_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


def parse_cpus(text: str) -> tuple[int, ...]:
    """Ascending, each once; none of an empty text. Raises ValueError."""
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last > MAX_CPU:
            raise ValueError("is not a list of cores such as 0-15 or 0-7,32-39")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def format_cpus(cpus: Iterable[int]) -> str:
    """The shortest text: (0, 1, 2, 3, 8) -> 0-3,8."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def cpus_problem(text: str) -> str:
    """Why a text names no cores; empty if it does."""
    try:
        return "" if parse_cpus(text) else "names no core"
    except ValueError as error:
        return str(error)
