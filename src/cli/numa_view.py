"""Shows where bound processes run, as rows of a table."""

from __future__ import annotations

from ..config import Resolved
from ..config.cpu_list import parse_cpus


def place_text(node: int, cpus: str) -> str:
    """Text such as `node 0, cores 0-15 (16)`."""
    count = len(parse_cpus(cpus))
    return f"node {node}, core {cpus}" if count == 1 else f"node {node}, cores {cpus} ({count})"


def place_rows(resolved: Resolved) -> list[tuple[str, str]]:
    """Rows of the processes of this machine; none if they are not bound."""
    places = zip(resolved.topology.process_names, resolved.numa_places, strict=False)
    return [
        ("" if index else "NUMA", f"{process}: {place_text(*place)}") for index, (process, place) in enumerate(places)
    ]
