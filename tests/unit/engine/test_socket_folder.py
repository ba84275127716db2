from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.engine.socket_folder import SocketFolder


def test_it_is_private_and_goes_with_its_owner(tmp_path: Path):
    folder = SocketFolder(str(tmp_path))
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    folder.remove()
    folder.remove()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_owner_left_is_removed_by_the_next_start(tmp_path: Path):
    """A front end that is killed with -9 removes nothing itself."""
    code = "import os, sys; from stoker.engine.socket_folder import SocketFolder as S; S(sys.argv[1]); os._exit(9)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=False)
    (abandoned,) = tmp_path.iterdir()
    stranger = tmp_path / "stoker-sockets-of-somebody-else"
    stranger.mkdir()
    first, second = SocketFolder(str(tmp_path)), SocketFolder(str(tmp_path))
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


def test_a_folder_that_cannot_be_locked_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With no descriptors left this once made folders for ever."""

    def no_descriptors(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "open", no_descriptors)
    with pytest.raises(OSError, match="too many open files"):
        SocketFolder(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_nothing_but_its_own_sockets_is_ever_removed(tmp_path: Path):
    """A folder with a lock of that name and a user's file in it was once removed whole."""
    folder = SocketFolder(str(tmp_path))
    (folder.path / "precious.txt").write_text("x")
    folder.remove()
    assert (folder.path / "precious.txt").exists()
    SocketFolder(str(tmp_path)).remove()
    assert (folder.path / "precious.txt").exists()
