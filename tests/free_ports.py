"""Free ports of this machine."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


def free_port() -> int:
    """Where nothing listens."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of `count` free ports in succession."""
    while True:
        found: list[socket.socket] = []
        try:
            found.append(socket.create_server((HOST, 0)))
            first = found[0].getsockname()[1]
            found += [socket.create_server((HOST, first + index)) for index in range(1, count)]
        except (OSError, OverflowError):
            continue
        else:
            return int(first)
        finally:
            for each in found:
                each.close()
