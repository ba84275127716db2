"""A deployment under systemd: it reports when it is ready. `engine diff` compares it with its file."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from .deployment import command, environment, serving

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_systemd_is_notified_and_the_running_deployment_equals_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def differs(*words: str) -> tuple[int, str]:
        result = subprocess.run(
            command("diff", str(file), *words), env=environment(), capture_output=True, text=True, check=False
        )
        return result.returncode, result.stdout

    file = tmp_path / "deploy.yaml"
    file.write_text("model: {model: builtin:tiny}\nserver: {port: 0, drain_timeout: 7s}\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with serving(file) as (_, url):
            assert supervisor.recv(64) == b"READY=1"
            assert differs(url) == (0, "")
            assert differs(url, "--drain-timeout", "9s") == (1, "server.drain_timeout: 7s -> 9s  [next start]\n")
