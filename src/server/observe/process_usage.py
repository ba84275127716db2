"""CPU time and resident memory of a process and its children, from /proc. Linux only.

Does not know what the processes are: the caller names the first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")  # of a second: the unit of times in /proc
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/PID/stat after the name of the program, see proc_pid_stat(5): utime, stime, and these of children
# that have ended and were waited for, so that the sum over the processes never falls when one of them ends.
_TIMES = slice(11, 15)
_RESIDENT = 21


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    cpu_s: float  # since the start of the processes
    resident_bytes: int  # pages that processes share are counted in each


def usage_of(pid: int | None, proc: Path = PROC) -> ProcessUsage | None:
    """Usage of a process and its descendants; None if it has ended, or where there is no /proc."""
    if pid is None:
        return None
    found = [fields for each in _tree(pid, proc) if (fields := _stat(each, proc))]
    if not found:
        return None
    ticks = sum(int(value) for fields in found for value in fields[_TIMES])
    return ProcessUsage(ticks / _TICKS, sum(int(fields[_RESIDENT]) for fields in found) * _PAGE)


def _tree(pid: int, proc: Path) -> Iterator[int]:
    yield pid
    # Each thread has its own list of the processes that it has started.
    for children in proc.glob(f"{pid}/task/*/children"):
        try:
            started = children.read_text()
        except OSError:
            continue  # the thread has ended
        for child in started.split():
            yield from _tree(int(child), proc)


def _stat(pid: int, proc: Path) -> list[str] | None:
    try:
        # The name of the program is in parentheses and may contain spaces and parentheses.
        return (proc / str(pid) / "stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None
