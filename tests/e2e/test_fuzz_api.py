"""tools.fuzz_api, in short, against a real server."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.clients.server import Server
from tools.fuzz_api import report, run

pytestmark = pytest.mark.slow


def test_no_generated_request_makes_the_server_fail(tmp_path: Path):
    server = Server("open", tmp_path / "server.log")
    try:
        found = run(server, num_requests=600, num_cases=15, number=1, num_streams=4)
        assert server.wait_until(server.is_idle)
        assert not found.mistakes, report(found, server.statuses())
    finally:
        server.close()
    assert sum(found.statuses.values()) == 600
