"""Free ports of this machine, outside the range from which the kernel takes ports itself."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

HOST = "127.0.0.1"
LOWEST = 10_000
END = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
CHANCE = random.SystemRandom()  # workers and tests with seeds choose different ones


def free_port() -> int:
    """Where nothing listens."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of `count` free ports in succession."""
    while True:
        first = CHANCE.randrange(LOWEST, END - count)
        try:
            with ExitStack() as taken:
                for index in range(count):
                    taken.enter_context(socket.create_server((HOST, first + index)))
        except OSError:
            continue
        return first
