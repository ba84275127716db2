"""The supervisor of servers with a replica each. In their place: processes that do what the files of a folder say."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.free_ports import HOST, free_ports

from stoker.cli import replica_process, replica_servers
from stoker.cli.replica_servers import ReplicaServers
from stoker.config import Resolved, load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.logs import fields_of
from stoker.server.http.address import bind
from stoker.server.http.shutdown import Shutdown
from stoker.server.replica_health import readiness

LIMIT_S = 60.0
SERVER = """
import json, socket, sys, time
from pathlib import Path

def wait_for(event):
    while not (folder / f"{rank}.{start}.{event}").exists():
        time.sleep(0.01)

folder, rank = Path(__file__).parent, sys.argv[sys.argv.index("--rank") + 1]
start = 1 + len(list(folder.glob(f"{rank}.*.started")))
(folder / f"{rank}.{start}.started").touch()
control = socket.socket(fileno=int(sys.argv[sys.argv.index("--control") + 1]))
wait_for("listens")
control.sendall(json.dumps({"summary": "it listens"}).encode() + bytes([10]))
wait_for("ends")
"""


def resolved(first: int) -> Resolved:
    words = f"--model builtin:tiny --port {first} -dp 2 -dpm --data-parallel-supervisor-port {first + 2}".split()
    deployment = load_deployment([], words)
    return resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the files that say what the servers do."""
    (tmp_path / "server.py").write_text(SERVER)
    monkeypatch.setattr(replica_process, "COMMAND", (sys.executable, str(tmp_path / "server.py")))
    return tmp_path


def test_the_start_is_over_when_all_servers_listen_at_the_same_time(folder: Path) -> None:
    """A server that had ended counted as one that listens: systemd was notified while its port refused connections."""
    first, summaries = free_ports(3), list[str]()
    sockets = {rank: bind(HOST, first + rank) for rank in range(2)}

    async def check() -> None:
        shutdown = Shutdown()
        servers = ReplicaServers(resolved(first), sockets, shutdown, 0.0, lambda phase: None, summaries.append)
        running = asyncio.create_task(servers.run())
        (folder / "0.1.listens").touch()
        await until(lambda: servers.health[0].has_served)
        (folder / "0.1.ends").touch()
        await until(lambda: servers.health[0].num_restarts == 1)
        (folder / "1.1.listens").touch()
        await until(lambda: servers.health[1].has_served)
        assert not servers.have_listened
        (folder / "0.2.listens").touch()
        await until(lambda: servers.have_listened)
        assert summaries == ["it listens"]
        shutdown.request()
        assert await asyncio.wait_for(running, LIMIT_S) == 0

    asyncio.run(check())


def test_a_server_whose_port_is_taken_waits_for_it_and_the_others_serve(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After 5 seconds the whole deployment ended."""
    monkeypatch.setattr(replica_servers, "_REPORT_S", 0.0)
    first = free_ports(4)
    taken, sockets = bind(HOST, first), {0: bind(HOST, first + 3), 1: bind(HOST, first + 1)}
    for name in ("0.1.listens", "1.1.listens", "0.1.ends", "0.2.listens"):
        (folder / name).touch()

    async def check() -> None:
        shutdown = Shutdown()
        servers = ReplicaServers(resolved(first), sockets, shutdown, 0.0, lambda phase: None, lambda summary: None)
        running = asyncio.create_task(servers.run())
        await until(lambda: "waits for its port" in caplog.text and servers.health[1].is_ready)
        assert servers.health[0].reason == f"cannot listen on {HOST}:{first}: address already in use"
        assert readiness(servers.health, is_draining=False) is not None
        assert readiness(servers.health, is_draining=False, is_one_enough=True) is None
        for sock in taken:
            sock.close()
        await until(lambda: servers.health[0].is_ready)
        assert caplog.text.count("waits for its port") == 1
        assert servers.health[0].num_restarts == 1
        shutdown.request()
        assert await asyncio.wait_for(running, LIMIT_S) == 0

    asyncio.run(check())


def test_a_deployment_ends_while_a_server_waits_for_its_port(folder: Path) -> None:
    first = free_ports(4)
    taken, sockets = bind(HOST, first), {0: bind(HOST, first + 3), 1: bind(HOST, first + 1)}
    for name in ("0.1.listens", "0.1.ends"):
        (folder / name).touch()

    async def check() -> None:
        shutdown = Shutdown()
        servers = ReplicaServers(resolved(first), sockets, shutdown, 0.0, lambda phase: None, lambda summary: None)
        running = asyncio.create_task(servers.run())
        await until(lambda: "cannot listen" in servers.health[0].reason)
        shutdown.request()
        assert await asyncio.wait_for(running, LIMIT_S) == 0

    asyncio.run(check())
    for sock in taken:
        sock.close()


@pytest.mark.slow
def test_a_server_that_hangs_while_it_starts_is_started_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was waited for without end: only servers that listen are probed."""
    first = free_ports(3)
    sockets = {rank: bind(HOST, first + rank) for rank in range(2)}
    for name in ("1.1.listens", "0.2.listens"):
        (folder / name).touch()

    async def check() -> None:
        shutdown, limit_s = Shutdown(), 5.0
        servers = ReplicaServers(resolved(first), sockets, shutdown, 0.0, str, str, limit_s)
        running = asyncio.create_task(servers.run())
        await until(lambda: servers.health[0].is_ready)
        assert servers.health[0].num_restarts == 1
        assert servers.health[1].num_restarts == 0
        (ended,) = [fields_of(record) for record in caplog.records if record.message == "a server is ended"]
        assert ended == {"rank": 0, "reason": "the server has not accepted requests within 5 s"}
        shutdown.request()
        assert await asyncio.wait_for(running, LIMIT_S) == 0

    asyncio.run(check())
