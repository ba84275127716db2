"""Admission: how many connections may be open, in total and from one client. Counts only."""

from __future__ import annotations

import ipaddress
import sys
from collections import Counter
from dataclasses import dataclass

CLIENT_PREFIX_BITS = 64  # of an IPv6 address: one client usually has all addresses of such a network


@dataclass(frozen=True, slots=True)
class Reached:
    """A limit that does not allow one more connection."""

    option: str
    num_open: int
    of_whom: str


class Admission:
    """max_per_client: a reverse proxy is one client, because all connections through it have its address."""

    def __init__(self, max_connections: int = sys.maxsize, max_per_client: int = sys.maxsize) -> None:
        self._max_connections = max_connections
        self._max_per_client = max_per_client
        self._num_open = 0
        self._num_of_client: Counter[str] = Counter()

    def enter(self, client: str) -> Reached | None:
        """Count a connection, unless a limit is reached, which is returned.

        client: from `client_of`; empty for a Unix socket, where clients cannot be distinguished.
        """
        if self._num_open >= self._max_connections:
            return Reached("server.max_connections", self._num_open, "all clients")
        num_of_client = self._num_of_client[client]
        if client and num_of_client >= self._max_per_client:
            return Reached("server.max_connections_per_client", num_of_client, "this address")
        self._num_open += 1
        self._num_of_client[client] += 1
        return None

    def leave(self, client: str) -> None:
        self._num_open -= 1
        self._num_of_client[client] -= 1
        if not self._num_of_client[client]:
            del self._num_of_client[client]


def client_of(address: object) -> str:
    """Client of a connection, from the address that `accept` gives: an IPv4 address, or a network of IPv6."""
    if not isinstance(address, tuple):
        return ""
    host = str(address[0]).partition("%")[0]
    return str(ipaddress.ip_network((host, CLIENT_PREFIX_BITS), strict=False)) if ":" in host else host
