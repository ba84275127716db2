"""Starts a command on one NUMA node: `python -m stoker.engine.host.on_node NODE CORES COMMAND...`.

The command takes the place of this process, which keeps its id, its open files and what it was bound to: all threads of
the command run on these cores, and all its memory, from the first import on, comes from the node.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...config.cpu_list import parse_cpus
from ...config.exit_codes import EXIT_ENVIRONMENT
from ...config.memory_policy import bind_memory, policy, set_policy

if TYPE_CHECKING:
    from ...config import Resolved


def on_node(resolved: Resolved, local_rank: int, command: Sequence[str]) -> Sequence[str]:
    """The command that starts a process of a replica where `device.numa_bind` says. local_rank: on this machine."""
    if not resolved.numa_places:
        return command
    node, cpus = resolved.numa_places[local_rank]
    return sys.executable, "-m", f"{__package__}.on_node", str(node), cpus, *command


def bind_this_process(node: int, cpus: str) -> None:
    """Bind all threads to the cores, and further memory of this thread and of new ones to the node. Raises OSError."""
    numbers = parse_cpus(cpus)
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), numbers)
    bind_memory(node)


@contextlib.contextmanager
def bound_to(node: int, cpus: str) -> Iterator[None]:
    """Binds this process until the end of the block, to be used in one thread. Raises OSError."""
    memory, own = policy(), os.sched_getaffinity(0)
    before: dict[str, set[int]] = {}
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            before[thread] = os.sched_getaffinity(int(thread))
    try:
        bind_this_process(node, cpus)
        yield
    finally:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # it has ended, or its cores are gone
                os.sched_setaffinity(int(thread), before.get(thread, own))
        with contextlib.suppress(OSError):
            set_policy(memory)


def main(argv: Sequence[str]) -> int:
    node, cpus, *command = argv
    try:
        bind_this_process(int(node), cpus)
        os.execv(command[0], command)
    except OSError as error:
        print(f"error: cannot start on NUMA node {node} with the cores {cpus}: {error.strerror}", file=sys.stderr)
    return EXIT_ENVIRONMENT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
