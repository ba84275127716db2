"""Two ranks of a launcher, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread

import pytest
from tests.free_ports import free_port

from stoker.config import Resolved, load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.engine.transport.rank_messages import Loaded
from stoker_launcher.following import LaunchedRank
from stoker_launcher.launch import Launch
from stoker_launcher.leading import LaunchedProcesses

LIMIT_S = 60.0
Ranks = tuple[LaunchedProcesses, LaunchedRank]


@pytest.fixture(scope="module")
def resolved() -> Resolved:
    words = "--model builtin:tiny -tp 2 --distributed-executor-backend external_launcher --max-model-len 256"
    deployment = load_deployment([], words.split(), env={})
    return resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())


@pytest.fixture
def connect(resolved: Resolved, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ranks]]:
    """Connects two ranks. Its arguments are their limits, and whether the other one has loaded."""
    port = free_port()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    made: list[LaunchedProcesses | LaunchedRank] = []

    def connected(limit_0_s: float = LIMIT_S, limit_1_s: float = LIMIT_S, *, loads: bool = True) -> Ranks:
        first = Thread(
            target=lambda: made.append(LaunchedProcesses(resolved, Launch(0, 2, "127.0.0.1", port), limit_s=limit_0_s))
        )
        first.start()
        other = LaunchedRank(resolved, Launch(1, 2, "127.0.0.1", port), limit_1_s)
        first.join(LIMIT_S)
        (rank_0,) = made
        assert isinstance(rank_0, LaunchedProcesses)
        made.append(other)
        if loads:
            other.send(Loaded())
            rank_0.wait_loaded()
        return rank_0, other

    yield connected
    for each in made:
        each.close()
