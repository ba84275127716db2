"""What the processes of a deployment need of the memory of each NUMA node, with `device.numa_bind`."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.record import Record
from ..cpu_list import format_cpus
from ..resolve.decisions import Decisions
from .estimate import NOTHING, Range


class PlacedProcess(Record):
    name: str
    node: int
    cores: str
    num_cores: int


class NodeUse(Record):
    """
    needed: by all processes on the node; nothing if they keep their model on GPUs.
    available_bytes: free on the node, as far as the limits of this process, such as its container's, leave it.
    """

    number: int
    num_processes: int
    needed: Range
    available_bytes: int


class NumaUse(Record):
    processes: tuple[PlacedProcess, ...]
    nodes: tuple[NodeUse, ...]


def numa_use(decisions: Decisions, of_one: Range) -> NumaUse | None:
    """Use of NUMA nodes; None where processes are not bound. of_one: what a process needs on a CPU."""
    places = decisions.numa_places
    if not places:
        return None
    each = of_one if decisions.gpu is None or decisions.is_interpreted else NOTHING
    numbers: Sequence[int] = [place.node for place in places]
    return NumaUse(
        processes=tuple(
            PlacedProcess(name=place.process, node=place.node, cores=format_cpus(place.cpus), num_cores=len(place.cpus))
            for place in places
        ),
        nodes=tuple(
            NodeUse(
                number=node.number,
                num_processes=(count := numbers.count(node.number)),
                needed=sum([each] * count, start=NOTHING),
                available_bytes=min(node.available_memory_bytes, decisions.whole_machine.available_memory_bytes),
            )
            for node in decisions.whole_machine.numa_nodes
            if node.number in numbers
        ),
    )
