"""The ports of servers with a replica each, and of their supervisor, bound before anything is loaded."""

from __future__ import annotations

import socket

from ..config.schema.parallel import ParallelConfig
from ..server.http.address import CannotListen, bind

MAX_PORT = 65535


def take_ports(
    host: str,
    first: int,
    parallel: ParallelConfig,
    of_supervisor: list[socket.socket],
    of_replicas: dict[int, list[socket.socket]],
) -> None:
    """Adds to both what is bound, so that the caller can close it. Raises CannotListen, with what the port is for.

    Binds nothing if the ports cannot be: a rule says so when the deployment is resolved. first: `server.port`.
    """
    ports, of_health = parallel.ports(first), parallel.data_parallel_supervisor_port
    if first == 0 or max(ports.values()) > MAX_PORT or of_health in ports.values():
        return
    of_supervisor += _bind(host, of_health, "the supervisor")
    for rank, port in ports.items():
        of_replicas[rank] = _bind(host, port, f"the server of replica {rank}")


def _bind(host: str, port: int, whose: str) -> list[socket.socket]:
    try:
        return bind(host, port)
    except CannotListen as error:
        raise CannotListen(f"{error.address}, the port of {whose}", error.reason) from None
