"""The supervisor of servers with a replica each. In their place: processes that do what the files of a folder say."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.free_ports import HOST, free_ports

from stoker.cli import replica_process
from stoker.cli.replica_servers import ReplicaServers
from stoker.config import Resolved, load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.server.http.address import bind
from stoker.server.http.shutdown import Shutdown

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


def test_the_start_is_over_when_all_servers_listen_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that had ended counted as one that listens: systemd was notified while its port refused connections."""
    (tmp_path / "server.py").write_text(SERVER)
    monkeypatch.setattr(replica_process, "COMMAND", (sys.executable, str(tmp_path / "server.py")))
    first, summaries = free_ports(3), list[str]()
    sockets = {rank: bind(HOST, first + rank) for rank in range(2)}

    async def check() -> None:
        shutdown = Shutdown()
        servers = ReplicaServers(resolved(first), sockets, shutdown, 0.0, lambda phase: None, summaries.append)
        running = asyncio.create_task(servers.run())
        (tmp_path / "0.1.listens").touch()
        await until(lambda: servers.health[0].has_served)
        (tmp_path / "0.1.ends").touch()
        await until(lambda: servers.health[0].num_restarts == 1)
        (tmp_path / "1.1.listens").touch()
        await until(lambda: servers.health[1].has_served)
        assert not servers.have_listened
        (tmp_path / "0.2.listens").touch()
        await until(lambda: servers.have_listened)
        assert summaries == ["it listens"]
        shutdown.request()
        assert await asyncio.wait_for(running, LIMIT_S) == 0

    asyncio.run(check())
