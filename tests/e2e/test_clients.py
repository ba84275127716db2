"""tools.clients with the openai library of this environment, against real servers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tools.clients import record
from tools.clients.clients import CLIENTS
from tools.clients.run import verdicts
from tools.clients.server import FLAGS, Server

pytestmark = pytest.mark.slow


def test_what_works_with_the_openai_library_still_works(tmp_path: Path):
    client = CLIENTS["openai"]
    servers: dict[str, Server] = {}
    try:
        servers.update((kind, Server(kind, tmp_path / f"{kind}.log")) for kind in FLAGS)
        found = {case.name: verdict for case, verdict in verdicts(client, Path(sys.prefix), servers)}
    finally:
        for server in servers.values():
            server.close()
    recorded = record.read()["openai"]["verdicts"]
    worked = [name for name, verdict in recorded.items() if verdict["result"] == "works"]
    assert {name: found[name].note for name in worked if found[name].result != "works"} == {}
    assert len(worked) > 15
