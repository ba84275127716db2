"""RankChild: a rank that runs on this machine, seen from the process that has started it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...config import Resolved
from ..processes.on_node import on_node
from ..processes.process_state import StoppedWatch
from .rank_link import RankLink, Start

if TYPE_CHECKING:
    from ..memory.shared_memory import SharedMemory

COMMAND = (sys.executable, "-m", f"{__package__.rpartition('.')[0]}.rank_process")
_END_S = 0.25  # for a process that has closed its connection to end


class RankChild:
    """link: to the process, which ends when the other end is closed."""

    def __init__(
        self,
        rank: int,
        fds: Mapping[str, int],
        flags: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        """
        fds: descriptors that it inherits, by the name of its argument.
        environment: None is that of this process.
        command: starts it.

        Raises OSError.
        """
        self.rank = rank
        mine, its = socket.socketpair()
        with its:
            given = {"rank": rank, "socket": its.fileno(), **fds}
            self.process = subprocess.Popen(
                [*command, *(word for name, value in given.items() for word in (f"--{name}", str(value))), *flags],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[its.fileno(), *fds.values()],
                process_group=0,  # Ctrl-C in a terminal is for the process that starts it
            )
        self.link = RankLink(mine)
        self._stopped = StoppedWatch(self.process.pid)

    def __str__(self) -> str:
        return f"rank {self.rank} of the model (process {self.process.pid})"

    def is_stopped(self) -> bool:
        """By SIGSTOP, or a debugger, in two calls one after the other."""
        return self._stopped.is_stopped()

    def end(self) -> str:
        """How it has ended."""
        try:
            code = self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "has closed its connection"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        """Ends it, and waits for that."""
        self.process.kill()
        self.process.wait()
        self.link.close()


def command_of(resolved: Resolved, rank: int) -> Sequence[str]:
    """That starts a rank on this machine, where it is to run."""
    return on_node(resolved, rank % resolved.parallel.num_local_ranks, COMMAND)


def children_of_node(resolved: Resolved, node: int, memories: Mapping[int, SharedMemory]) -> list[RankChild]:
    """Starts the ranks of a node, which connect to node 0; not rank 0 itself. memories: of groups. Raises OSError."""
    parallel = resolved.parallel
    children: list[RankChild] = []
    try:
        for rank in range(max(1, node * parallel.num_local_ranks), (node + 1) * parallel.num_local_ranks):
            memory = memories.get(rank // parallel.tensor_parallel_size)
            fds = {} if memory is None else {"memory": memory.fd}
            children.append(RankChild(rank, fds, ["--joins"], command=command_of(resolved, rank)))
            children[-1].link.send(Start(resolved.model_dump_json()))
    except BaseException:
        for child in children:
            child.close()
        raise
    return children


def memories_of_node(resolved: Resolved, node: int) -> dict[int, SharedMemory]:
    """By group, of those groups of several ranks that are on this node as a whole. Raises OSError."""
    parallel = resolved.parallel
    if parallel.tensor_parallel_size == 1:
        return {}
    from ..memory.shared_memory import SharedMemory

    size = parallel.tensor_parallel_size
    groups = (group for group in range(parallel.num_groups) if parallel.node_of(group * size) == node)
    return {group: SharedMemory.new(size) for group in groups if parallel.is_on_one_node(group)}


def close_descriptors(memories: Mapping[int, SharedMemory]) -> None:
    """They are mapped here, and inherited by the ranks that have been started."""
    for memory in memories.values():
        os.close(memory.fd)
