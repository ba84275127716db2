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
from ..host.on_node import on_node
from ..host.process_state import StoppedWatch
from ..transport.rank_link import RankLink
from ..transport.rank_messages import Start

if TYPE_CHECKING:
    from ..host.shared_memory import SharedMemory

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
        environment: None: of this process.
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
        """Whether SIGSTOP, or a debugger, has stopped the process, in this call and the one before."""
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
        """End the process, and wait for that."""
        self.process.kill()
        self.process.wait()
        self.link.close()


def command_of(resolved: Resolved, rank: int) -> Sequence[str]:
    """Command that starts a rank on this machine, where it is to run."""
    return on_node(resolved, rank % resolved.topology.num_local_ranks, COMMAND)


def children_of_node(resolved: Resolved, node: int, memories: Mapping[int, SharedMemory]) -> list[RankChild]:
    """Starts the ranks of a node, which connect to node 0; not rank 0 itself. memories: of groups. Raises OSError."""
    topology = resolved.topology
    children: list[RankChild] = []
    try:
        for rank in topology.ranks_of_node(node):
            if rank == 0:
                continue
            memory = memories.get(topology.group_of(rank))
            fds = {} if memory is None else {"memory": memory.fd}
            children.append(RankChild(rank, fds, ["--joins"], command=command_of(resolved, rank)))
            children[-1].link.send(Start(resolved.model_dump_json()))
    except BaseException:
        for child in children:
            child.close()
        raise
    return children


def memories_of_node(resolved: Resolved, node: int) -> dict[int, SharedMemory]:
    """Shared memory by group, for groups of several ranks that are on this node as a whole. Raises OSError."""
    topology = resolved.topology
    size = topology.group_size
    if size == 1:
        return {}
    from ..host.shared_memory import SharedMemory

    groups = (group for group in range(topology.num_groups) if topology.node_of(group * size) == node)
    return {group: SharedMemory.new(size) for group in groups if topology.is_on_one_node(group)}


def close_descriptors(memories: Mapping[int, SharedMemory]) -> None:
    """Close the descriptors of memories, which are mapped here, and inherited by the ranks that have been started."""
    for memory in memories.values():
        os.close(memory.fd)
