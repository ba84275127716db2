from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from stoker.cli.notify import notify_ready


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_is_notified_once(is_abstract: bool, tmp_path: Path) -> None:
    name = f"@stoker-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name.replace("@", "\0", 1))
        sock.settimeout(5)
        notify_ready({"NOTIFY_SOCKET": name})
        assert sock.recv(64) == b"READY=1"


@pytest.mark.parametrize("env", [{}, {"NOTIFY_SOCKET": "/nowhere/at/all"}, {"NOTIFY_SOCKET": "vsock:1:2"}])
def test_nothing_happens_without_a_listener(env: dict[str, str]) -> None:
    notify_ready(env)
