from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.config.resolve.numa_nodes import read_numa_nodes

from ..imitated_nodes import GIB, Node, eight_nodes, machine, two_sockets, with_memory_only


def test_two_sockets_with_hyperthreads(tmp_path: Path) -> None:
    first, second = two_sockets(tmp_path)
    assert (first.number, second.number) == (0, 1)
    assert first.cores[:2] == ((0, 32), (1, 33))
    assert (len(first.cores), len(first.usable_cpus)) == (16, 32)
    assert (first.total_memory_bytes, first.available_memory_bytes) == (64 * GIB, 48 * GIB)
    assert second.available_memory_bytes == 28 * GIB


def test_sub_numa_clusters(tmp_path: Path) -> None:
    nodes = eight_nodes(tmp_path)
    assert [node.number for node in nodes] == list(range(8))
    assert nodes[7].cores == ((28,), (29,), (30,), (31,))


def test_a_node_of_memory_only(tmp_path: Path) -> None:
    socket, memory = with_memory_only(tmp_path)
    assert (memory.number, memory.cores, memory.cpus) == (2, (), ())
    assert memory.has_usable_memory
    assert socket.has_usable_memory


def test_offline_nodes_and_cores_are_left_out(tmp_path: Path) -> None:
    """The kernel leaves offline cores out of a node's list; a folder may remain of a node that is offline."""
    root = machine(tmp_path, {0: Node("0,2"), 1: Node("4-7"), 3: Node("8-11", 0, 0, 0)})
    (root / "sys/devices/system/node/online").write_text("0,3\n")
    nodes = read_numa_nodes(root)
    assert [(node.number, node.cpus, node.has_usable_memory) for node in nodes] == [
        (0, (0, 2), True),
        (3, (8, 9, 10, 11), False),
    ]


def test_a_container_with_a_part_of_the_machine(tmp_path: Path) -> None:
    first, second = two_sockets(tmp_path, allowed_cpus="0-3,20,52", allowed_nodes="0")
    assert first.cores == ((0,), (1,), (2,), (3,))
    assert second.cores == ((20, 52),)
    assert (first.may_use_memory, second.may_use_memory) == (True, False)
    assert not second.has_usable_memory


@pytest.mark.parametrize("text", ["", "all", "0-99999"])
def test_limits_in_an_unknown_form_do_not_count(text: str, tmp_path: Path) -> None:
    """They ended every command, of deployments without `device.numa_bind` too, or left no cores."""
    first, second = two_sockets(tmp_path, allowed_cpus=text, allowed_nodes=text)
    assert (len(first.cores), first.may_use_memory) == (len(second.cores), second.may_use_memory) == (16, True)


def test_nodes_together_have_no_more_than_the_kernel_says(tmp_path: Path) -> None:
    nodes = {0: Node("0-1", free=40, cached=0), 1: Node("2-3", free=20, cached=0)}
    found = read_numa_nodes(machine(tmp_path, nodes, available=54))
    assert [node.available_memory_bytes for node in found] == [36 * GIB, 18 * GIB]


def test_a_system_without_nodes(tmp_path: Path) -> None:
    assert read_numa_nodes(tmp_path) == ()


@pytest.mark.skipif(not Path("/sys/devices/system/node/online").exists(), reason="the system has no NUMA nodes")
def test_this_machine() -> None:
    nodes = read_numa_nodes()
    usable = {cpu for node in nodes for cpu in node.usable_cpus}
    assert usable == os.sched_getaffinity(0)
    assert 0 < sum(node.available_memory_bytes for node in nodes) <= sum(node.total_memory_bytes for node in nodes)
