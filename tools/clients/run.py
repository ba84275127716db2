"""Runs the cases of one client against the servers."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .cases import CASES
from .clients import Client
from .environments import ROOT, worker
from .judging import Case, Seen, Verdict, judge
from .server import Server
from .task import TASK

CASE_LIMIT_S = 300.0
FULL_ATTEMPTS = 5  # a place in the full queue is free for some milliseconds every few seconds


class WorkerFailed(Exception):
    """The message is the reason, in one line."""


class Worker:
    """The process in the client's environment: see worker.py."""

    def __init__(self, command: list[str], variables: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(self, call: str, task: dict[str, Any]) -> dict[str, Any]:
        """Raises WorkerFailed."""
        self.send(call, task)
        return self.answer()

    def send(self, call: str, task: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            print(json.dumps({"call": call, "task": task}), file=self._process.stdin, flush=True)
        except OSError:
            raise WorkerFailed("the process of the client ended") from None

    def has_answered(self, limit_s: float = 0.0) -> bool:
        """Whether the process has answered, or has ended."""
        return bool(select.select([self._process.stdout], [], [], limit_s)[0])

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not self.has_answered(CASE_LIMIT_S):
            raise WorkerFailed(f"no result after {CASE_LIMIT_S:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"the process of the client ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def verdicts(client: Client, folder: Path, servers: Mapping[str, Server]) -> Iterator[tuple[Case, Verdict]]:
    """servers: by kind. After a case that ends or blocks the client's process, the next one gets a new process."""
    process = Worker(*worker(client, folder))
    try:
        for case in CASES:
            try:
                verdict = _verdict(client, case, process, servers[case.server])
            except WorkerFailed as failure:
                verdict = Verdict("differs", str(failure))
                process.close()
                process = Worker(*worker(client, folder))
            print(f"  {case.name}: {verdict.result} {verdict.note}", file=sys.stderr)
            yield case, verdict
    finally:
        process.close()


def _verdict(client: Client, case: Case, process: Worker, server: Server) -> Verdict:
    for _ in range(FULL_ATTEMPTS):
        seen = _full(case, process, server) if case.server == "full" else _open(case, process, server)
        if seen is None:
            return Verdict("absent")
        if case.server == "open" or seen.statuses.get("429"):
            return judge(case, seen, client.errors)
    return Verdict("differs", f"the queue was not full in {FULL_ATTEMPTS} attempts")


def _open(case: Case, process: Worker, server: Server) -> Seen | None:
    task = {**TASK, **case.change}
    expected: dict[str, Any] = {}
    if case.reference:
        asked = {"messages": [{"role": "user", "content": task["question"]}]}
        if case.reference == "/completions":
            asked = {"prompt": task["prompt"]}
        expected = server.answer(case.reference, {**asked, **task["options"], **task["extra"]})
    _, before = server.counts()
    answer = process.ask(case.call or case.name, {**task, "url": server.url})
    if "absent" in answer:
        return None
    if case.is_cut:
        server.wait_until(lambda: server.is_idle() and server.counts()[1] != before)
    ended = server.counts()[1]
    return Seen(answer.get("returned"), answer.get("raised"), expected, ended=ended - before)


def _full(case: Case, process: Worker, server: Server) -> Seen | None:
    """The queue is emptied after the first 429, for a client that tries again."""
    before, _ = server.counts()

    def counted() -> Counter[str]:
        return server.counts()[0] - before

    with server.full_queue() as release:
        process.send(case.call or case.name, {**TASK, **case.change, "url": server.url})
        began = time.monotonic()
        server.wait_until(lambda: bool(counted()) or process.has_answered())
        release.set()
        answer = process.answer()
        seconds = time.monotonic() - began
    if "absent" in answer:
        return None
    server.wait_until(lambda: counted()["200" if "returned" in answer else "429"] > 0)
    return Seen(answer.get("returned"), answer.get("raised"), statuses=counted(), seconds=seconds)
