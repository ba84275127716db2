"""A client that does no harm, in its own process: asks /health and a small completion, and reports its latencies.

    python -m benchmarks.attack.bystander HOST PORT [HOST PORT of a server that is not attacked]

It runs until its standard input is closed, then prints JSON. It comes from 127.0.0.2, so that a limit per client
address which the attack exhausts does not concern it, and makes a connection for each request, as a probe does.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from .server import ROOT

LIMIT_S = 30.0
SOURCE = ("127.0.0.2", 0)
HEALTH_PAUSE_S, COMPLETION_PAUSE_S = 0.02, 0.3
MODULE = "benchmarks.attack.bystander"
COMPLETION = json.dumps({"model": "tiny", "prompt": "What does", "max_tokens": 4, "temperature": 0}).encode()


@dataclass
class Latencies:
    """Milliseconds, of requests that were answered 200."""

    num: int = 0
    p50: float = 0.0
    p99: float = 0.0
    max: float = 0.0
    failed: list[str] = field(default_factory=list)  # what the others ended with

    @classmethod
    def of(cls, milliseconds: list[float], failed: list[str]) -> Latencies:
        """Latencies of a client that has to wait: a request that fails is no latency."""
        if not milliseconds:
            return cls(failed=failed)
        cuts = (
            statistics.quantiles(milliseconds, n=100, method="inclusive")
            if len(milliseconds) > 1
            else milliseconds * 99
        )
        return cls(len(milliseconds), round(cuts[49], 1), round(cuts[98], 1), round(max(milliseconds), 1), failed)


@dataclass
class Observed:
    health: Latencies = field(default_factory=Latencies)
    completion: Latencies = field(default_factory=Latencies)
    control: Latencies = field(default_factory=Latencies)  # of a server that is not attacked

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@contextlib.contextmanager
def watching(address: tuple[str, int], control: tuple[str, int] | None = None) -> Iterator[Callable[[], Observed]]:
    """Yields the function that ends the bystander and returns what it saw."""
    words = [str(word) for word in (*address, *(control or ()))]
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> Observed:
        try:
            output, _ = process.communicate(timeout=2 * LIMIT_S + 5)
        except subprocess.TimeoutExpired:
            stuck = Latencies(failed=["the bystander is stuck"])
            return Observed(stuck, stuck)
        found = json.loads(output)
        return Observed(**{name: Latencies(**latencies) for name, latencies in found.items()})

    try:
        yield end
    finally:
        process.kill()
        process.communicate()


class _Client(threading.Thread):
    def __init__(self, address: tuple[str, int], method: str, path: str, body: bytes, pause_s: float) -> None:
        super().__init__(daemon=True)
        self._address, self._request, self._pause_s = address, (method, path, body), pause_s
        self.milliseconds: list[float] = []
        self.failed: list[str] = []
        self.ended = threading.Event()

    def run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                status = self._ask()
            except (OSError, http.client.HTTPException) as error:
                status = type(error).__name__
            if status == 200:
                self.milliseconds.append((time.monotonic() - began) * 1e3)
            else:
                self.failed.append(f"{status} after {time.monotonic() - began:.1f} s")
            if self.ended.wait(self._pause_s):
                return

    def _ask(self) -> int | str:
        method, path, body = self._request
        connection = http.client.HTTPConnection(*self._address, timeout=LIMIT_S, source_address=SOURCE)
        with contextlib.closing(connection):
            connection.request(method, path, body or None, {"content-type": "application/json", "connection": "close"})
            answer = connection.getresponse()
            answer.read()
            return answer.status


def main() -> None:
    address = sys.argv[1], int(sys.argv[2])
    clients = {
        "health": _Client(address, "GET", "/health", b"", HEALTH_PAUSE_S),
        "completion": _Client(address, "POST", "/v1/completions", COMPLETION, COMPLETION_PAUSE_S),
    }
    if len(sys.argv) > 3:
        clients["control"] = _Client((sys.argv[3], int(sys.argv[4])), "GET", "/", b"", HEALTH_PAUSE_S)
    for client in clients.values():
        client.start()
    sys.stdin.read()
    for client in clients.values():
        client.ended.set()
    for client in clients.values():
        client.join(LIMIT_S + 1)
    found = {name: asdict(Latencies.of(client.milliseconds, client.failed)) for name, client in clients.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
