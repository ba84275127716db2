"""The memory that the ranks of a stage share, where no process has started another.

The first rank of the stage makes it; the others open it through /proc, where its inode shows that it is the same.
"""

from __future__ import annotations

import os

from stoker.config import Resolved
from stoker.engine.host.shared_memory import SharedMemory

from .launch import Launch, MeetingPoint, NotLaunched


def stage_memory(resolved: Resolved, launch: Launch, point: MeetingPoint) -> SharedMemory | None:
    """The shared memory of this rank's stage; None for one rank, ranks on several machines, or an exchange through
    Gloo.

    Its descriptor is to be closed when all ranks have connected. Raises NotLaunched or OSError.
    """
    topology = resolved.topology
    size, stage = topology.group_size, topology.group_of(launch.rank)
    if size == 1 or resolved.parallel.disable_custom_all_reduce or not topology.is_on_one_node(stage):
        return None
    name = f"memory of stage {stage}"
    if topology.rank_in_group(launch.rank) == 0:
        memory = SharedMemory.new(size)
        path = f"/proc/{os.getpid()}/fd/{memory.fd}"
        point.publish(name, {"path": path, "inode": os.fstat(memory.fd).st_ino})
        return memory
    place = point.read(name)
    try:
        fd = os.open(place["path"], os.O_RDWR)
    except OSError as error:
        raise NotLaunched(_not_shared(launch.rank, stage * size, str(error.strerror))) from None
    if os.fstat(fd).st_ino != place["inode"]:
        os.close(fd)
        raise NotLaunched(_not_shared(launch.rank, stage * size, "it is in another PID namespace"))
    return SharedMemory(fd, size)


def _not_shared(rank: int, first: int, why: str) -> str:
    return (
        f"rank {rank} cannot share memory with rank {first}: {why}. Set `parallel.disable_custom_all_reduce: true`: "
        "they exchange through Gloo then"
    )
