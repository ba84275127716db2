"""The ports of servers with a replica each, and of their supervisor."""

from __future__ import annotations

import socket

import pytest
from tests.free_ports import HOST, free_ports

from stoker.cli.replica_ports import take_ports
from stoker.config.schema.parallel import ParallelConfig
from stoker.server.http.address import CannotListen


def parallel(supervisor_port: int, **more: int) -> ParallelConfig:
    sizes = {"data_parallel_size": 2, **more}
    return ParallelConfig(
        data_parallel_multi_port_external_lb=True, data_parallel_supervisor_port=supervisor_port, **sizes
    )


def test_each_rank_of_the_machine_has_the_next_port() -> None:
    first = free_ports(3)
    of_supervisor: list[socket.socket] = []
    of_replicas: dict[int, list[socket.socket]] = {}
    some = {"data_parallel_size": 4, "data_parallel_size_local": 2, "data_parallel_start_rank": 2}
    take_ports(HOST, first, parallel(first + 2, **some), of_supervisor, of_replicas)
    taken = {rank: [sock.getsockname()[1] for sock in sockets] for rank, sockets in of_replicas.items()}
    assert taken == {2: [first], 3: [first + 1]}
    assert [sock.getsockname()[1] for sock in of_supervisor] == [first + 2]
    for sock in (*of_supervisor, *of_replicas[2], *of_replicas[3]):
        sock.close()


@pytest.mark.parametrize(("index", "whose"), [(1, "the server of replica 1"), (2, "the supervisor")])
def test_a_port_that_is_taken_is_named_with_who_wanted_it(index: int, whose: str) -> None:
    first = free_ports(3)
    of_supervisor: list[socket.socket] = []
    of_replicas: dict[int, list[socket.socket]] = {}
    with socket.create_server((HOST, first + index)):
        with pytest.raises(CannotListen) as caught:
            take_ports(HOST, first, parallel(first + 2), of_supervisor, of_replicas)
        said = f"cannot listen on {HOST}:{first + index}, the port of {whose}: address already in use"
        assert str(caught.value) == said
    for sock in (*of_supervisor, *(sock for sockets in of_replicas.values() for sock in sockets)):
        sock.close()


@pytest.mark.parametrize(("first", "supervisor"), [(0, 9256), (65535, 9256), (9255, 9256)])
def test_ports_that_a_rule_refuses_are_not_taken(first: int, supervisor: int) -> None:
    of_supervisor: list[socket.socket] = []
    of_replicas: dict[int, list[socket.socket]] = {}
    take_ports(HOST, first, parallel(supervisor), of_supervisor, of_replicas)
    assert (of_supervisor, of_replicas) == ([], {})
