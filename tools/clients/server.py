"""`engine up deployments/tiny.yaml` for the clients: its URL, its counters, and a queue that is kept full."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from .environments import ROOT
from .task import KEY, MODEL

START_LIMIT_S, SETTLE_LIMIT_S = 240.0, 120.0
FLAGS = {
    "open": [
        *("--responses-store", "memory", "--model-aliases", json.dumps({"claude-*": MODEL})),
        "--enable-prompt-tokens-details",
    ],
    "full": ["--max-num-seqs", "1", "--max-queued-requests", "1"],
}
_ANSWERS = {"/v1/chat/completions", "/v1/messages"}  # routes of the case `chat`


class Server:
    def __init__(self, kind: str, log: Path) -> None:
        """Returns when the server is ready. kind: key of FLAGS."""
        command = [sys.executable, "-m", "stoker", "up", str(ROOT / "deployments" / "tiny.yaml"), "--port", "0"]
        command += [
            "--api-key",
            KEY,
            "--drain-timeout",
            "1s",
            "--files-dir",
            str(log.with_suffix(".files")),
            *FLAGS[kind],
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / ".dev"), "NO_COLOR": "1"}
        with log.open("w") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        self.url = self._wait_ready(log)
        self._http = httpx.Client(headers={"Authorization": f"Bearer {KEY}"}, timeout=60, trust_env=False)

    def _wait_ready(self, log: Path) -> str:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            text = log.read_text()
            found = re.search(r"^ +url +(http\S+)$", text, re.MULTILINE)
            if found and "curl " in text:
                return found[1]
            time.sleep(0.1)
        self._end()
        raise SystemExit(f"error: the server did not start\n{log.read_text()}")

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The response to a request over plain HTTP."""
        response = self._http.post(f"{self.url}{path}", json={"model": MODEL, **body})
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer

    def get(self, path: str) -> Any:
        """JSON of a route outside /v1."""
        return self._http.get(f"{self.url.removesuffix('/v1')}{path}").raise_for_status().json()

    def statuses(self) -> Counter[str]:
        """Requests to all routes by status, since the start."""
        found: Counter[str] = Counter()
        for sample in self._samples():
            if sample.name == "stoker_http_requests_total":
                found[sample.labels["status"]] += int(sample.value)
        return found

    def counts(self) -> tuple[Counter[str], Counter[str]]:
        """Requests for an answer by status, and finished sequences by reason, since the start."""
        statuses: Counter[str] = Counter()
        ended: Counter[str] = Counter()
        for sample in self._samples():
            if sample.name == "stoker_http_requests_total" and sample.labels["route"] in _ANSWERS:
                statuses[sample.labels["status"]] += int(sample.value)
            if sample.name == "stoker_requests_finished_total":
                ended[sample.labels["finish_reason"]] += int(sample.value)
        return statuses, ended

    def wait_until(self, is_reached: Callable[[], bool]) -> bool:
        """False if it was not reached in SETTLE_LIMIT_S."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        while not is_reached():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def is_idle(self) -> bool:
        names = ("stoker_num_requests_running", "stoker_num_requests_waiting")
        return not any(sample.value for sample in self._samples() if sample.name in names)

    def _samples(self) -> Iterator[Any]:
        text = self._http.get(self.url.removesuffix("/v1") + "/metrics").raise_for_status().text
        for family in text_string_to_metric_families(text):
            yield from family.samples

    @contextlib.contextmanager
    def full_queue(self) -> Iterator[threading.Event]:
        """Keeps the queue of a `full` server full until the end, or until the event is set.

        Requests to the completions route, which are therefore not in `counts`, take each free place at once.
        """
        release = threading.Event()
        holders = [threading.Thread(target=self._hold, args=(release,)) for _ in range(4)]
        for holder in holders:
            holder.start()
        try:
            self.wait_until(lambda: self._http.post(f"{self.url}/completions", json=_one_token()).status_code == 429)
            yield release
        finally:
            release.set()
            for holder in holders:
                holder.join()
            self.wait_until(self.is_idle)

    def _hold(self, release: threading.Event) -> None:
        body = {**_one_token(), "max_tokens": 1900, "ignore_eos": True, "stream": True}
        with httpx.Client(headers=self._http.headers, timeout=60, trust_env=False) as client:
            while not release.is_set():
                with client.stream("POST", f"{self.url}/completions", json=body) as response:
                    if response.status_code == 429:
                        time.sleep(0.005)
                        continue
                    for _ in response.iter_lines():
                        if release.is_set():
                            break

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        self._http.close()
        self._end()


def _one_token() -> dict[str, Any]:
    return {"model": MODEL, "prompt": "2 + 3 =", "max_tokens": 1}
