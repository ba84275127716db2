"""SuiteRunner: starts a process for each part with a time limit and stores the records that it sends.

If a process crashes, only the running case is lost. A process that exceeds its time is killed, and the cases that it
had not started are recorded as skipped. Does not import torch.
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

from .part import DEVICE_LOST, PartConfig
from .record import Record, RecordFile

ROOT = Path(__file__).parents[2]
_GRACE_S = 2.0  # after a part's deadline, so that a case that is nearly done can end


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    module: str
    seconds: float  # of the 600 seconds of the suite
    each_alone: bool = False  # every case runs in a separate process
    python_path: str | None = None  # PYTHONPATH of its processes; None: the import path of this process


class SuiteRunner:
    def __init__(self, records: RecordFile, config: PartConfig, seconds: float, show: Callable[[Record], None]) -> None:
        """config: the settings common to all parts. seconds: for all parts together."""
        self._records = records
        self._config = config
        self._deadline = time.time() + seconds
        self._show = show
        self._saved = 0.0  # seconds that earlier parts did not use

    def run(self, part: Part, scale: float) -> None:
        """scale: factor for the part's seconds."""
        began = time.time()
        allowed = part.seconds * scale + self._saved
        deadline = min(began + allowed, self._deadline)
        if deadline <= began:
            self._add(Record(part.name, part.name, "", error="skipped: no time left"))
            return
        config = replace(
            self._config,
            part=part.name,
            deadline=deadline,
            bytes_per_second=self._records.value_of("machine", "memory read"),
            flops_per_second=self._records.value_of("machine", "matrix product"),
        )
        self._run_processes(part, config)
        self._saved = max(0.0, allowed - (time.time() - began))

    def _run_processes(self, part: Part, config: PartConfig) -> None:
        config = replace(config, is_alone=part.each_alone)
        started: list[str] = []
        case_names: list[str] | None = None  # unknown
        while case_names is None or len(started) < len(case_names):
            result = self._process(part, replace(config, skip=started, started_at=time.time()))
            started, case_names = started + result.started, result.case_names
            if result.reason is not None:
                self._add(Record(part.name, started[-1] if started else part.name, "", error=result.reason))
            if result.is_out_of_time or not result.started:
                break
        for name in case_names or []:
            if name not in started:
                self._add(Record(part.name, name, "", error="skipped: the part has no time left"))

    def _process(self, part: Part, config: PartConfig) -> _ProcessResult:
        result = _ProcessResult()
        same = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": same if part.python_path is None else part.python_path}
        command = [sys.executable, "-m", "benchmarks.gpu.part", part.module, json.dumps(asdict(config))]
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
                while (line := lines.get(timeout=max(0.01, config.deadline + _GRACE_S - time.time()))) is not None:
                    self._read_message(line, result)
                code = process.wait(_GRACE_S)
            except (queue.Empty, subprocess.TimeoutExpired):
                code = 0
                result.is_out_of_time = True
                result.reason = "stopped: the part exceeded its time"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                reader.join()
            errors.seek(0)
            stderr = errors.read()
        print(stderr[-20_000:], end="", file=sys.stderr, flush=True)
        if code not in (0, DEVICE_LOST):
            last = next((line for line in reversed(stderr.splitlines()) if line.strip()), "")
            result.reason = f"the process exited with code {code}: {last[:200]}"
        return result

    def _read_message(self, line: str, result: _ProcessResult) -> None:
        try:
            message: dict[str, Any] = json.loads(line)
        except ValueError:  # partial output of a process that crashed
            return
        if "record" in message:
            self._add(Record(**message["record"]))
        elif "machine" in message:
            self._records.add_machine_info(message["machine"])
        elif "cases" in message:
            result.case_names = message["cases"]
        elif "begin" in message:
            result.started.append(message["begin"])

    def _add(self, record: Record) -> None:
        self._records.add(record)
        self._show(record)


class _ProcessResult:
    """Outcome of one process."""

    def __init__(self) -> None:
        self.case_names: list[str] = []
        self.started: list[str] = []
        self.reason: str | None = None  # why it failed
        self.is_out_of_time = False


def _forward(pipe: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in pipe:
        lines.put(line)
    lines.put(None)
