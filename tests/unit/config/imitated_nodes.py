"""/proc and /sys of machines with several NUMA nodes, as folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stoker.config.cpu_list import format_cpus, parse_cpus
from stoker.config.resolve.numa_nodes import NumaNode, read_numa_nodes

GIB = 1 << 30


@dataclass(frozen=True)
class Node:
    cpus: str
    total: int = 64  # GiB, as the others
    free: int = 40
    cached: int = 8  # by the page cache, half of it in use


def machine(
    root: Path,
    nodes: dict[int, Node],
    *,
    siblings: int = 0,
    allowed_cpus: str = "0-8191",
    allowed_nodes: str = "0-1023",
    available: int = 1 << 20,
) -> Path:
    """
    siblings: distance of the numbers of the hyperthreads of a core; 0 for one each.
    available: GiB of the whole machine, as the kernel says it.
    """
    folder = root / "sys/devices/system"
    files = {
        "proc/self/status": f"Cpus_allowed_list:\t{allowed_cpus}\nMems_allowed_list:\t{allowed_nodes}\n",
        "proc/meminfo": f"MemAvailable:   {available << 20} kB\n",
        "sys/devices/system/node/online": format_cpus(nodes) + "\n",
    }
    for number, node in nodes.items():
        fields = {
            "MemTotal": node.total << 20,
            "MemFree": node.free << 20,
            "Active(file)": node.cached << 19,
            "Inactive(file)": node.cached << 19,
            "HugePages_Total": 0,
        }
        own = folder / f"node/node{number}"
        files[f"{own.relative_to(root)}/cpulist"] = node.cpus + "\n"
        files[f"{own.relative_to(root)}/meminfo"] = "".join(
            f"Node {number} {name}:  {size} kB\n" for name, size in fields.items()
        )
        for cpu in parse_cpus(node.cpus):
            threads = {cpu, cpu % siblings, cpu % siblings + siblings} if siblings else {cpu}
            files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = format_cpus(threads) + "\n"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def two_sockets(root: Path, allowed_cpus: str = "0-63", allowed_nodes: str = "0-1") -> tuple[NumaNode, ...]:
    """Of 16 cores with two hyperthreads each."""
    nodes = {0: Node("0-15,32-47"), 1: Node("16-31,48-63", free=20)}
    return read_numa_nodes(machine(root, nodes, siblings=32, allowed_cpus=allowed_cpus, allowed_nodes=allowed_nodes))


def eight_nodes(root: Path) -> tuple[NumaNode, ...]:
    """Two sockets with sub-NUMA clustering, of 4 cores in each of 4 clusters."""
    return read_numa_nodes(machine(root, {node: Node(f"{4 * node}-{4 * node + 3}", 16, 12, 2) for node in range(8)}))


def with_memory_only(root: Path) -> tuple[NumaNode, ...]:
    """One socket and a node of high-bandwidth memory."""
    return read_numa_nodes(machine(root, {0: Node("0-7"), 2: Node("", 16, 15, 0)}))
