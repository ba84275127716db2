"""The NUMA nodes of a machine: their cores and their memory, as far as this process may use them.

Read from /sys/devices/system. A node may have no memory, or no cores (memory on a CXL card, HBM); offline nodes and
cores are not listed. Limits of cpusets and of affinity come from /proc/self/status.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...model.record import Record
from ..cpu_list import parse_cpus

_RECLAIMABLE = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")


class NumaNode(Record):
    number: int
    cpus: tuple[int, ...]  # all that are online: what Linux numbers, a hyperthread each
    cores: tuple[tuple[int, ...], ...]  # those that this process may use; hyperthreads of one core are together
    total_memory_bytes: int
    available_memory_bytes: int  # free or reclaimable now
    may_use_memory: bool  # whether the cpuset of this process has the node

    @property
    def usable_cpus(self) -> tuple[int, ...]:
        return tuple(sorted(cpu for core in self.cores for cpu in core))

    @property
    def has_usable_memory(self) -> bool:
        return self.may_use_memory and self.total_memory_bytes > 0


def read_numa_nodes(root: Path = Path("/")) -> tuple[NumaNode, ...]:
    """NUMA nodes that are online, by number; none if the system does not list them. root: where /proc and /sys are."""
    folder, status = root / "sys/devices/system/node", _text(root / "proc/self/status")
    allowed_cpus, allowed_nodes = _allowed(status, "Cpus"), _allowed(status, "Mems")
    nodes: list[NumaNode] = []
    for number in _numbers(folder / "online"):
        own = folder / f"node{number}"
        fields = _sizes(own / "meminfo", rf"Node {number} ")
        cpus = _numbers(own / "cpulist")
        usable = [cpu for cpu in cpus if allowed_cpus is None or cpu in allowed_cpus]
        nodes.append(
            NumaNode(
                number=number,
                cpus=cpus,
                cores=_by_core(root / "sys/devices/system/cpu", usable),
                total_memory_bytes=fields.get("MemTotal", 0),
                available_memory_bytes=sum(fields.get(name, 0) for name in _RECLAIMABLE),
                may_use_memory=allowed_nodes is None or number in allowed_nodes,
            )
        )
    return _no_more_than(_sizes(root / "proc/meminfo").get("MemAvailable"), nodes)


def _no_more_than(available: int | None, nodes: list[NumaNode]) -> tuple[NumaNode, ...]:
    """The kernel keeps reserves, which it counts for the whole machine only: each node has its share of them."""
    found = sum(node.available_memory_bytes for node in nodes)
    if available is None or found <= available:
        return tuple(nodes)
    return tuple(
        node.model_copy(update={"available_memory_bytes": node.available_memory_bytes * available // found})
        for node in nodes
    )


def _by_core(folder: Path, cpus: list[int]) -> tuple[tuple[int, ...], ...]:
    """Group hyperthreads by core. Cores, and the hyperthreads of each, are in the order of `cpus`."""
    cores: dict[int, list[int]] = {}
    for cpu in cpus:
        siblings = _numbers(folder / f"cpu{cpu}/topology/thread_siblings_list") or (cpu,)
        cores.setdefault(siblings[0], []).append(cpu)
    return tuple(tuple(core) for core in cores.values())


def _allowed(status: str, kind: str) -> set[int] | None:
    """Numbers that the system allows this process; None if the system does not list them, or in an unknown form."""
    line = re.search(rf"^{kind}_allowed_list:[ \t]*(\S+)$", status, re.MULTILINE)
    try:
        return None if line is None else set(parse_cpus(line[1]))
    except ValueError:
        return None


def _sizes(file: Path, prefix: str = "") -> dict[str, int]:
    """Sizes in bytes, by name."""
    found: list[tuple[str, str]] = re.findall(rf"^{prefix}([\w()]+):\s+(\d+) kB$", _text(file), re.MULTILINE)
    return {name: 1024 * int(size) for name, size in found}


def _numbers(file: Path) -> tuple[int, ...]:
    try:
        return parse_cpus(_text(file).strip())
    except ValueError:
        return ()


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
