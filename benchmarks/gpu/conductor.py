"""Conductor: starts a process for each part, gives it its time, and writes down what it tells.

A process that dies costs the case it was in; one that is out of time is killed, and what it had not begun is recorded
as skipped. Knows no torch.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from .part import DEVICE_LOST, Order
from .record import Record, RecordFile

ROOT = Path(__file__).parents[2]
_GRACE_S = 2.0  # after a part's deadline: a case that is nearly done may end


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    module: str
    seconds: float  # of the 600 that the suite takes
    each_alone: bool = False  # every case in a process of its own


class Conductor:
    def __init__(self, records: RecordFile, order: Order, seconds: float, show: Callable[[Record], None]) -> None:
        """order: what all parts have in common. seconds: for all parts together."""
        self._records = records
        self._order = order
        self._deadline = time.time() + seconds
        self._show = show
        self._saved = 0.0  # seconds that parts before left over

    def play(self, part: Part, scale: float) -> None:
        """scale: of the part's seconds."""
        began = time.time()
        allowed = part.seconds * scale + self._saved
        deadline = min(began + allowed, self._deadline)
        if deadline <= began:
            self._add(Record(part.name, part.name, "", error="skipped: no time left"))
            return
        order = replace(
            self._order,
            part=part.name,
            deadline=deadline,
            bytes_per_second=self._records.value_of("machine", "memory read"),
            flops_per_second=self._records.value_of("machine", "matrix product"),
        )
        self._play(part, order)
        self._saved = max(0.0, allowed - (time.time() - began))

    def _play(self, part: Part, order: Order) -> None:
        order = replace(order, is_alone=part.each_alone)
        begun: list[str] = []
        named: list[str] | None = None  # unknown
        while named is None or len(begun) < len(named):
            played = self._process(part, replace(order, skip=begun, started=time.time()))
            begun, named = begun + played.begun, played.named
            if played.reason is not None:
                self._add(Record(part.name, begun[-1] if begun else part.name, "", error=played.reason))
            if played.is_out_of_time or not played.begun:
                break
        for name in named or []:
            if name not in begun:
                self._add(Record(part.name, name, "", error="skipped: no time left of its part"))

    def _process(self, part: Part, order: Order) -> _Played:
        played = _Played()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # it imports what we do
        command = [sys.executable, "-m", "benchmarks.gpu.part", part.module, json.dumps(asdict(order))]
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True,
            ) as process,
        ):  # fmt: skip
            lines: queue.Queue[str | None] = queue.Queue()
            reader = threading.Thread(target=_forward, args=(process.stdout, lines))
            reader.start()
            try:
                while (line := lines.get(timeout=max(0.01, order.deadline + _GRACE_S - time.time()))) is not None:
                    self._hear(line, played)
                code = process.wait(_GRACE_S)
            except (queue.Empty, subprocess.TimeoutExpired):
                code = 0
                played.is_out_of_time = True
                played.reason = "stopped: out of the time of its part"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                reader.join()
            errors.seek(0)
            said = errors.read()
        print(said[-20_000:], end="", file=sys.stderr, flush=True)
        if code not in (0, DEVICE_LOST):
            last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
            played.reason = f"its process ended with code {code}: {last[:200]}"
        return played

    def _hear(self, line: str, played: _Played) -> None:
        try:
            message: dict[str, Any] = json.loads(line)
        except ValueError:  # the last words of a process that died
            return
        if "record" in message:
            self._add(Record(**message["record"]))
        elif "facts" in message:
            self._records.add_facts(message["facts"])
        elif "cases" in message:
            played.named = message["cases"]
        elif "begin" in message:
            played.begun.append(message["begin"])

    def _add(self, record: Record) -> None:
        self._records.add(record)
        self._show(record)


class _Played:
    """What one process did."""

    def __init__(self) -> None:
        self.named: list[str] = []
        self.begun: list[str] = []
        self.reason: str | None = None  # why it did not end well
        self.is_out_of_time = False


def _forward(pipe: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in pipe:
        lines.put(line)
    lines.put(None)
