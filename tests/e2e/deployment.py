"""A deployment as its user runs it: the command in a separate process, called over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).parents[2]
ENGINE_MODULE = "stoker.engine.process"
START_LIMIT_S = 240.0  # for a machine that runs many tests at the same time
DRAIN_S = 0.5
EXIT_LIMIT_S = 120.0


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "stoker", *words]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / ".dev"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


class Server:
    """`engine up` in the background. Collects the lines of stdout and stderr."""

    def __init__(self, manifest: Path, *flags: str) -> None:
        self.process = psutil.Popen(
            command("up", str(manifest), *flags),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=lines.extend, args=(stream,), daemon=True)
            for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def wait_ready(self) -> str:
        """The URL that the command printed."""
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            # The last lines of both streams, whose two readers are not synchronised.
            if any("curl " in line for line in self.out) and any(line.startswith("  engine ") for line in self.err):
                found = re.search(r"url +(http\S+)/v1", "".join(self.out))
                assert found
                return found[1]
            time.sleep(0.05)
        raise AssertionError("not ready: " + "".join(self.err))

    def wait_engine(self) -> psutil.Process:
        """The engine process, which starts some time after the server."""
        deadline = time.monotonic() + START_LIMIT_S
        while not self.engines():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return self.engine

    @property
    def engine(self) -> psutil.Process:
        (engine,) = self.engines()
        return engine

    def engines(self) -> list[psutil.Process]:
        """Without the processes of chat templates."""
        return [child for child in self.process.children() if ENGINE_MODULE in child.cmdline()]

    def wait(self, limit_s: float = EXIT_LIMIT_S) -> int:
        """The exit code."""
        code: int = self.process.wait(limit_s)
        for reader in self._readers:
            reader.join(EXIT_LIMIT_S)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for reader in self._readers:
            reader.join(EXIT_LIMIT_S)
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()


def write_manifest(path: Path, checkpoint: Path, **server: Any) -> Path:
    content = {
        "apiVersion": "stoker/v1",
        "kind": "Deployment",
        "model": {"model": str(checkpoint), "dtype": "float32", "served_model_name": ["tiny"]},
        "cache": {"num_gpu_blocks_override": 4096},
        "scheduler": {"max_num_seqs": 32, "max_num_batched_tokens": 256},
        "device": {"num_threads": 1},
        "server": {"port": 0, "drain_timeout": f"{DRAIN_S}s", "log_level": "warning", **server},
    }
    path.write_text(json.dumps(content))
    return path


@contextlib.contextmanager
def serving(manifest: Path, *flags: str) -> Iterator[tuple[Server, str]]:
    server = Server(manifest, *flags)
    try:
        yield server, server.wait_ready()
    finally:
        server.close()


@dataclass
class Answer:
    """What one streamed request returned."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    error: dict[str, Any] | None = None
    is_done: bool = False  # [DONE] was received


async def events(client: httpx.AsyncClient, body: dict[str, Any], answer: Answer) -> AsyncIterator[None]:
    """Send a streamed completion request; each event is added to `answer`."""
    async with client.stream("POST", "/v1/completions", json={"model": "tiny", "stream": True, **body}) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line:
                continue
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                answer.is_done = True
                return
            event = json.loads(data)
            if "error" in event:
                answer.error = event["error"]
                return
            choice = event["choices"][0]
            answer.token_ids += choice.get("token_ids") or []
            answer.finish_reason = choice["finish_reason"] or answer.finish_reason
            yield


async def ask(client: httpx.AsyncClient, body: dict[str, Any], leave_after: int | None = None) -> Answer:
    """leave_after: close the connection after this number of events."""
    answer = Answer()
    stream = events(client, body, answer)
    async with contextlib.aclosing(stream):  # type: ignore[type-var]
        count = 0
        async for _ in stream:
            count += 1
            if count == leave_after:
                break
    return answer


def http_client(url: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=url, timeout=60, limits=limits)


def metric(text: str, name: str) -> float:
    found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert found, f"{name} is not in the metrics"
    return float(found[1])


def seeded(number: int) -> random.Random:
    return random.Random(number)
