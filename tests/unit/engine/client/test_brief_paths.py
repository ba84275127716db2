from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.engine.client.brief_paths import brief_paths


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as opened:
        yield opened


def test_the_path_is_private_and_ends_with_the_block_but_connections_continue(listener: socket.socket):
    with socket.socket(socket.AF_UNIX) as client:
        with brief_paths([listener], "/tmp") as (path,):
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            client.connect(str(path))
        assert not path.parent.exists()
        accepted, _ = listener.accept()
        with accepted:
            client.sendall(b"hello")
            assert accepted.recv(5) == b"hello"


def test_a_base_that_is_too_long_for_a_socket_is_not_used(listener: socket.socket, tmp_path: Path):
    base = tmp_path / ("x" * 80)
    base.mkdir()
    with brief_paths([listener], str(base)) as (path,):
        assert path.parent.parent == Path("/tmp")


def test_a_base_that_does_not_exist_is_an_error(listener: socket.socket):
    with pytest.raises(FileNotFoundError), brief_paths([listener], "/tmp/missing"):
        pass
