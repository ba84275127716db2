"""Free ports of this machine, outside the range from which the kernel takes ports itself."""

from __future__ import annotations

import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
LOWEST = 10_000
END = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
CHANCE = random.SystemRandom()  # workers and tests with seeds choose different ones


def free_port() -> int:
    """Where nothing listens."""
    while True:
        port = CHANCE.randrange(LOWEST, END)
        try:
            with socket.create_server((HOST, port)):
                return port
        except OSError:
            continue
