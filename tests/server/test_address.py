"""The address of the server: a host and port, or a Unix socket."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx
import pytest

from stoker.server.http.address import CannotListen, UnixSocket, bind, take_address

from ..fakes import FakeEngine
from .deployment import on_a_socket


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "api.sock"


@pytest.mark.effect("server.host", "server.port")
def test_the_server_listens_only_on_its_host_and_port(folder: Path):
    (free,) = bind("127.0.0.2", 0)
    wanted = free.getsockname()[1]
    free.close()

    async def run() -> int:
        async with on_a_socket(folder, FakeEngine(), host="127.0.0.2", port=wanted) as (port, _):
            async with httpx.AsyncClient(base_url=f"http://127.0.0.2:{port}") as client:
                assert (await client.get("/version")).status_code == 200
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        return port

    assert asyncio.run(run()) == wanted


@pytest.mark.effect("server.uds")
def test_a_unix_socket_replaces_the_port_and_is_removed_at_the_end(folder: Path, path: Path):
    async def run() -> None:
        async with on_a_socket(folder, FakeEngine(), uds=str(path)):
            transport = httpx.AsyncHTTPTransport(uds=str(path))
            async with httpx.AsyncClient(base_url="http://localhost", transport=transport) as client:
                answer = await client.post("/v1/completions", json={"model": "alias", "prompt": "x", "max_tokens": 2})
                assert answer.status_code == 200
        assert list(path.parent.iterdir()) == []

    asyncio.run(run())


def test_the_socket_file_of_a_killed_server_is_replaced(path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.bind(str(path))
        killed.listen()
    path.with_name("api.sock.lock").touch()
    (ours,) = take_address("", 0, str(path))
    ours.close()
    assert list(path.parent.iterdir()) == []


def test_the_socket_of_a_server_that_is_starting_is_not_replaced(path: Path):
    first = UnixSocket(str(path))
    with pytest.raises(CannotListen) as caught:
        UnixSocket(str(path))
    assert str(caught.value) == f"cannot listen on {path}: address already in use"
    assert path.is_socket()
    first.close()
    UnixSocket(str(path)).close()


def test_the_socket_of_another_program_is_not_replaced(path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as theirs:
        theirs.bind(str(path))
        theirs.listen()
        with pytest.raises(CannotListen, match="address already in use"):
            UnixSocket(str(path))
        assert [entry.name for entry in path.parent.iterdir()] == ["api.sock"]


def test_a_file_that_is_not_a_socket_is_not_replaced(path: Path):
    path.write_text("text")
    with pytest.raises(CannotListen, match="is not a socket"):
        UnixSocket(str(path))
    assert path.read_text() == "text"


def test_a_file_that_another_program_put_at_our_path_is_not_removed(path: Path):
    ours = UnixSocket(str(path))
    path.unlink()
    path.write_text("text")
    ours.close()
    assert path.read_text() == "text"


@pytest.mark.parametrize(("name", "reason"), [("no/such/folder", "no such file"), ("x" * 120, "too long")])
def test_a_path_that_cannot_be_a_socket_is_reported(path: Path, name: str, reason: str):
    with pytest.raises(CannotListen, match=reason):
        UnixSocket(str(path.parent / name))
    assert list(path.parent.iterdir()) == []
