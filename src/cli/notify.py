"""Notifies systemd that the service is ready (`Type=notify`): one datagram to NOTIFY_SOCKET."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping


def notify_ready(env: Mapping[str, str] = os.environ) -> None:
    """Report that the server is ready to NOTIFY_SOCKET, if that is set and the socket exists."""
    address = env.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect(address.replace("@", "\0", 1) if address[0] == "@" else address)
        sock.sendall(b"READY=1")
