"""Process of one part of the suite: runs its cases one after another and writes their records to standard output.

If a case raises, the error is recorded and the next case starts. If a case leaves the device unusable, the process ends
and runner.py starts another one for the remaining cases.

Usage (by runner.py): python -m benchmarks.gpu.part MODULE CONFIG
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from .record import Record

DEVICE_LOST = 3  # exit code of the process
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class PartConfig:
    """Settings of a part; passed to its process as JSON."""

    part: str
    started_at: float  # of this process, by time.time
    deadline: float
    device: str  # where kernels run: cuda, or cpu for the interpreter
    engine_device: str  # device of the deployments
    is_reduced: bool  # tiny shapes
    untimed: str | None  # why no times are reported; None: they are reported
    bytes_per_second: float | None  # of this device, measured
    flops_per_second: float | None
    memory_bytes: int | None = None  # of the GPU; None without one
    skip: list[str] = field(default_factory=list)  # names of cases not to run
    is_alone: bool = False  # run one case, then exit


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    run: Callable[[Context], None]
    seconds: float = 1.0  # approximate duration: it is not started with less time left


class Context:
    """Passed to every case: settings, peak speeds for its floors, and where to record results."""

    def __init__(self, config: PartConfig, send: Callable[[str, Any], None]) -> None:
        self.config = config
        self.is_reduced = config.is_reduced
        self._send = send
        self._made: dict[str, Any] = {}

    def shared(self, name: str, make: Callable[[], Made]) -> Made:
        """An object that several cases share, created on first use."""
        if name not in self._made:
            self._made[name] = make()
        made: Made = self._made[name]
        return made

    def seconds_at_best(self, num_bytes: float, flops: float = 0.0) -> float | None:
        """Lower bound: the longer of reading `num_bytes` and computing `flops`; None if a peak speed is unknown."""
        if self.config.bytes_per_second is None or self.config.flops_per_second is None:
            return None
        return max(num_bytes / self.config.bytes_per_second, flops / self.config.flops_per_second)

    def record_machine(self, **info: Any) -> None:
        self._send("machine", info)

    def record(
        self,
        name: str,
        shape: str,
        value: float | None = None,
        unit: str = "",
        floor: float | None = None,
        spread: float | None = None,
        error: str | None = None,
        is_time: bool = True,
    ) -> None:
        """is_time: whether the value is a time or a rate; these are omitted if times are not measured."""
        if is_time and self.config.untimed is not None:
            value, floor, spread, error = None, None, None, error or self.config.untimed
        ratio = value / floor if value is not None and floor else None
        self._send("record", asdict(Record(self.config.part, name, shape, value, unit, floor, ratio, spread, error)))

    def is_usable(self) -> bool:
        """Whether the device still works: after an illegal address every later call fails."""
        if self.config.device != "cuda":
            return True
        import torch

        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True


def first_line(error: Exception) -> str:
    """Type of an error and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"


def run_cases(cases: list[Case], context: Context, send: Callable[[str, Any], None]) -> int:
    config = context.config
    send("cases", [case.name for case in cases])
    cases = [case for case in cases if case.name not in config.skip]
    for case in cases[:1] if config.is_alone else cases:
        left = config.deadline - time.time()
        send("begin", case.name)
        if left < case.seconds:
            reason = f"skipped: {max(left, 0):.0f} s left for the part, the case takes about {case.seconds:.0f} s"
            context.record(case.name, "", error=reason, is_time=False)
            continue
        try:
            case.run(context)
        except Exception as error:
            context.record(case.name, "", error=first_line(error), is_time=False)
            print(f"{config.part}: {case.name}", file=sys.stderr)
            sys.excepthook(type(error), error, error.__traceback__)
            if not context.is_usable():
                return DEVICE_LOST
    return 0


def main() -> None:
    config = PartConfig(**json.loads(sys.argv[2]))
    answers = os.fdopen(os.dup(1), "w")  # not inherited by processes that libraries start
    os.dup2(2, 1)  # keeps output of libraries out of the records
    sys.stdout = sys.stderr

    def send(kind: str, content: Any) -> None:
        print(json.dumps({kind: content}), file=answers, flush=True)

    module = importlib.import_module(sys.argv[1])
    context = Context(config, send)
    raise SystemExit(run_cases(module.cases(context), context, send))


if __name__ == "__main__":
    main()
