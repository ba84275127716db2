from __future__ import annotations

from pathlib import Path

import pytest

from stoker.config.cpu_list import format_cpus
from stoker.config.resolve.numa_nodes import NumaNode
from stoker.config.resolve.numa_places import (
    NoPlaces,
    fewest_cpus,
    idle_nodes,
    least_memory,
    numa_places,
    shared_cpus,
)

from ..imitated_nodes import GIB, eight_nodes, two_sockets, with_memory_only


def shown(machine: tuple[NumaNode, ...], count: int, nodes: tuple[int, ...] = (), *cpus: str) -> list[tuple[int, str]]:
    """Node and cores of each process."""
    names = [f"rank {rank}" for rank in range(count)]
    places = numa_places(machine, names, nodes=nodes, cpus=cpus)
    assert [place.process for place in places] == names
    return [(place.node, format_cpus(place.cpus)) for place in places]


def test_a_process_for_each_socket(tmp_path: Path) -> None:
    assert shown(two_sockets(tmp_path), 2) == [(0, "0-15,32-47"), (1, "16-31,48-63")]


def test_neighbours_divide_a_node_and_hyperthreads_stay_together(tmp_path: Path) -> None:
    machine = two_sockets(tmp_path)
    assert shown(machine, 4) == [(0, "0-7,32-39"), (0, "8-15,40-47"), (1, "16-23,48-55"), (1, "24-31,56-63")]
    assert shown(machine, 3) == [(0, "0-7,32-39"), (0, "8-15,40-47"), (1, "16-31,48-63")]
    assert shown(machine, 3, (1, 1, 1)) == [(1, "16-20,48-52"), (1, "21-25,53-57"), (1, "26-31,58-63")]


def test_few_processes_are_on_different_sockets(tmp_path: Path) -> None:
    machine = eight_nodes(tmp_path)
    assert shown(machine, 2) == [(0, "0-3"), (4, "16-19")]
    assert [node for node, _ in shown(machine, 8)] == list(range(8))
    places = numa_places(machine, ["rank 0", "rank 1"])
    assert idle_nodes(machine, places) == [1, 2, 3, 5, 6, 7]


def test_named_nodes_and_cores_are_taken_as_they_are(tmp_path: Path) -> None:
    machine = two_sockets(tmp_path)
    assert shown(machine, 2, (1, 0)) == [(1, "16-31,48-63"), (0, "0-15,32-47")]
    assert shown(machine, 2, (), "16-19", "0-3,32-35") == [(1, "16-19"), (0, "0-3,32-35")]
    assert shown(machine, 2, (0, 0), "0", "1") == [(0, "0"), (0, "1")]


def test_memory_without_cores_serves_those_of_another_node(tmp_path: Path) -> None:
    machine = with_memory_only(tmp_path)
    assert shown(machine, 1) == [(0, "0-7")]
    assert shown(machine, 1, (2,), "0-7") == [(2, "0-7")]
    with pytest.raises(NoPlaces, match="node 2 has no cores that this process may use: name some in `numa_bind_cpus`"):
        shown(machine, 1, (2,))


@pytest.mark.parametrize(
    ("nodes", "cpus", "said"),
    [
        ((0, 2), (), "rank 1 is to run on node 2; this machine has the nodes 0, 1"),
        ((), ("0", "64-65"), "rank 1 is to use the cores 64-65, which do not exist or are offline"),
        (
            (),
            ("0-3", "15-16"),
            "the cores 15-16 of rank 1 are of the nodes 0 and 1: name one in `numa_bind_nodes`",
        ),
    ],
)
def test_what_the_machine_does_not_have(
    nodes: tuple[int, ...], cpus: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    with pytest.raises(NoPlaces) as caught:
        shown(two_sockets(tmp_path), 2, nodes, *cpus)
    assert str(caught.value) == said


def test_what_a_container_does_not_allow(tmp_path: Path) -> None:
    machine = two_sockets(tmp_path, allowed_cpus="0-3", allowed_nodes="0")
    assert shown(machine, 2) == [(0, "0-1"), (0, "2-3")]
    with pytest.raises(NoPlaces, match="the memory of node 1 is outside of the cpuset"):
        shown(machine, 2, (0, 1))
    with pytest.raises(NoPlaces, match=r"rank 1 is to use the cores 4-5; this process may use 0-3 \(its affinity"):
        shown(machine, 2, (), "0-3", "2-5")
    with pytest.raises(NoPlaces, match="node 0 has 4 cores for 5 processes"):
        shown(machine, 5)


def test_a_machine_without_a_node_to_run_on(tmp_path: Path) -> None:
    with pytest.raises(NoPlaces, match="no NUMA node has both cores and memory"):
        shown(two_sockets(tmp_path, allowed_nodes="3"), 1)


def test_the_process_with_least_counts(tmp_path: Path) -> None:
    machine = two_sockets(tmp_path)
    places = numa_places(machine, ["a", "b", "c"])
    assert fewest_cpus(places) == 16
    assert least_memory(machine, places) == (32 * GIB, 24 * GIB)
    assert shared_cpus(places) == ()
    assert shared_cpus(numa_places(machine, ["a", "b"], cpus=("0-3", "2-5"))) == (2, 3)
