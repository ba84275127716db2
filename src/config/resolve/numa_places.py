"""Places processes: which NUMA node and which cores each process of a deployment has on this machine.

Processes are in the order of the options: replicas of this machine, and the processes of each by rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..cpu_list import format_cpus, parse_cpus
from .numa_nodes import NumaNode


class NoPlaces(Exception):
    """The machine does not have what the options name; the message says what."""


@dataclass(frozen=True, slots=True)
class NumaPlace:
    process: str  # its name
    node: int  # that its memory comes from
    cpus: tuple[int, ...]


def numa_places(
    machine: Sequence[NumaNode], processes: Sequence[str], *, nodes: Sequence[int] = (), cpus: Sequence[str] = ()
) -> list[NumaPlace]:
    """
    Args:
        machine: its nodes.
        processes: their names.
        nodes: the node of each process; empty to choose them.
        cpus: the cores of each process; empty for all of its node, divided among its processes.

    Raises NoPlaces.
    """
    by_number = {node.number: node for node in machine}
    named = [parse_cpus(text) for text in cpus]
    for process, each in zip(processes, named, strict=False):
        _check_cpus(machine, process, each)
    if nodes:
        chosen = list(nodes)
    elif named:
        chosen = [_node_of(machine, process, each) for process, each in zip(processes, named, strict=True)]
    else:
        chosen = _spread(machine, len(processes))
    for process, number in zip(processes, chosen, strict=True):
        _check_node(by_number, process, number)
    own = named or _divided(by_number, chosen)
    return [NumaPlace(*place) for place in zip(processes, chosen, own, strict=True)]


def fewest_cpus(places: Sequence[NumaPlace]) -> int:
    """Smallest number of CPUs of a process."""
    return min(len(place.cpus) for place in places)


def least_memory(machine: Sequence[NumaNode], places: Sequence[NumaPlace]) -> tuple[int, int]:
    """Total and available bytes that each process has, at least, where the processes of a node divide its memory."""
    counts = Counter(place.node for place in places)
    used = [node for node in machine if node.number in counts]
    total = min(node.total_memory_bytes // counts[node.number] for node in used)
    return total, min(node.available_memory_bytes // counts[node.number] for node in used)


def idle_nodes(nodes: Sequence[NumaNode], places: Sequence[NumaPlace]) -> list[int]:
    """Numbers of the nodes with cores and memory that no process has."""
    taken = {place.node for place in places}
    return [node.number for node in nodes if node.cores and node.has_usable_memory and node.number not in taken]


def shared_cpus(places: Sequence[NumaPlace]) -> tuple[int, ...]:
    """CPUs that several processes have."""
    counts = Counter(cpu for place in places for cpu in place.cpus)
    return tuple(sorted(cpu for cpu, count in counts.items() if count > 1))


def _spread(nodes: Sequence[NumaNode], num_processes: int) -> list[int]:
    """Neighbours share a node where there are fewer nodes; else every n-th node is taken, so that the sockets of
    several nodes each have some."""
    complete = [node.number for node in nodes if node.cores and node.has_usable_memory]
    if not complete:
        raise NoPlaces("no NUMA node has both cores and memory that this process may use")
    return [complete[index * len(complete) // num_processes] for index in range(num_processes)]


def _divided(nodes: dict[int, NumaNode], chosen: Sequence[int]) -> list[tuple[int, ...]]:
    """Whole cores of the node of each process, as many as its other processes have, or one more."""
    counts, before = Counter(chosen), Counter[int]()
    found: list[tuple[int, ...]] = []
    for number in chosen:
        cores, count, index = nodes[number].cores, counts[number], before[number]
        if not cores:
            raise NoPlaces(f"node {number} has no cores that this process may use: name some in `numa_bind_cpus`")
        if len(cores) < count:
            said = "1 core" if len(cores) == 1 else f"{len(cores)} cores"
            raise NoPlaces(f"node {number} has {said} for {count} processes")
        own = cores[index * len(cores) // count : (index + 1) * len(cores) // count]
        found.append(tuple(sorted(cpu for core in own for cpu in core)))
        before[number] += 1
    return found


def _check_node(nodes: dict[int, NumaNode], process: str, number: int) -> None:
    node = nodes.get(number)
    if node is None:
        known = ", ".join(map(str, nodes))
        raise NoPlaces(f"{process} is to run on node {number}; this machine has the nodes {known}")
    if not node.may_use_memory:
        raise NoPlaces(f"the memory of node {number} is outside of the cpuset of this process (Mems_allowed)")
    if not node.total_memory_bytes:
        raise NoPlaces(f"node {number} has no memory")


def _check_cpus(nodes: Sequence[NumaNode], process: str, cpus: tuple[int, ...]) -> None:
    online = {cpu for node in nodes for cpu in node.cpus}
    if absent := set(cpus) - online:
        raise NoPlaces(f"{process} is to use the cores {format_cpus(absent)}, which do not exist or are offline")
    usable = {cpu for node in nodes for cpu in node.usable_cpus}
    if outside := set(cpus) - usable:
        raise NoPlaces(
            f"{process} is to use the cores {format_cpus(outside)}; this process may use {format_cpus(usable)} "
            "(its affinity, or the cpuset of its container)"
        )


def _node_of(nodes: Sequence[NumaNode], process: str, cpus: tuple[int, ...]) -> int:
    found = [node.number for node in nodes if set(cpus) & set(node.cpus)]
    if len(found) > 1:
        said = " and ".join(map(str, found))
        raise NoPlaces(
            f"the cores {format_cpus(cpus)} of {process} are of the nodes {said}: name one in `numa_bind_nodes`"
        )
    return found[0]
