from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.engine.messages import ENGINE_SOCKET, HEARTBEAT_SOCKET
from stoker.engine.socket_folder import MAX_BASE_CHARS, SocketFolder


def test_the_folder_is_private_and_is_removed_by_its_owner(short: Path):
    folder = SocketFolder(str(short))
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    folder.remove()
    folder.remove()
    assert not list(short.iterdir())


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for sockets, which that of `tmp_path` need not be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_the_folder_of_a_killed_owner_is_removed_by_the_next_start(short: Path):
    """A front end that is killed with -9 removes nothing itself."""
    code = "import os, sys; from stoker.engine.socket_folder import SocketFolder as S; S(sys.argv[1]); os._exit(9)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(short)], env=environment, check=False)
    (abandoned,) = short.iterdir()
    stranger = short / "stoker-sockets-of-somebody-else"
    stranger.mkdir()
    first, second = SocketFolder(str(short)), SocketFolder(str(short))
    assert not abandoned.exists()
    assert stranger.exists()  # no lock: not one of ours, or not yet locked
    assert first.path.exists()
    assert second.path.exists()
    first.remove()
    second.remove()


def test_a_base_too_long_for_a_socket_is_not_used(tmp_path: Path):
    folder = SocketFolder(str(tmp_path / ("x" * 80)))
    assert folder.path.parent == Path("/tmp")
    folder.remove()


def test_sockets_can_be_bound_in_the_longest_base_that_is_used(short: Path):
    """A base of 72 characters was used, and the path of engine.sock was then one character too long."""
    base = short / ("x" * (MAX_BASE_CHARS - len(str(short)) - 1))
    base.mkdir()
    folder = SocketFolder(str(base))
    assert folder.path.parent == base
    for name in (ENGINE_SOCKET, HEARTBEAT_SOCKET):
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(folder.path / name))
    folder.remove()


def test_a_folder_that_cannot_be_locked_is_an_error_and_is_removed(short: Path, monkeypatch: pytest.MonkeyPatch):
    """With no file descriptors left this once made folders in an endless loop."""

    def no_descriptors(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "open", no_descriptors)
    with pytest.raises(OSError, match="too many open files"):
        SocketFolder(str(short))
    assert not list(short.iterdir())


def test_only_sockets_and_lock_files_are_removed(short: Path):
    """A folder with a lock of that name was once removed with a user's file in it."""
    folder = SocketFolder(str(short))
    (folder.path / "precious.txt").write_text("x")
    folder.remove()
    assert (folder.path / "precious.txt").exists()
    SocketFolder(str(short)).remove()
    assert (folder.path / "precious.txt").exists()
