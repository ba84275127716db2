"""One part of the suite in a process of its own: runs its cases one after another and tells of each on standard output.

A case that raises is told of, and the next begins. One that leaves the device unusable ends the process: whoever
started it starts another, for the cases that are left.

Usage (by conductor.py): python -m benchmarks.gpu.part MODULE ORDER
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from .record import Record

DEVICE_LOST = 3  # what the process ends with
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Order:
    """What a part is to do; goes through JSON."""

    part: str
    started: float  # of this process, by time.time
    deadline: float
    device: str  # where kernels run: cuda, or cpu for the interpreter
    engine_device: str  # what deployments ask for
    is_reduced: bool  # tiny shapes
    untimed: str | None  # why no times are told
    bytes_per_second: float | None  # of this device, measured
    flops_per_second: float | None
    skip: list[str] = field(default_factory=list)  # cases
    is_alone: bool = False  # one case, and the process is done


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    run: Callable[[Context], None]
    seconds: float = 1.0  # that it takes about: it is not begun with less time left


class Context:
    """What a case is given: where to run, what to hold its times against, and where to put them."""

    def __init__(self, order: Order, tell: Callable[[str, Any], None]) -> None:
        self.order = order
        self.is_reduced = order.is_reduced
        self._tell = tell
        self._made: dict[str, Any] = {}

    def made(self, name: str, make: Callable[[], Made]) -> Made:
        """What several cases share: made for the first that asks."""
        if name not in self._made:
            self._made[name] = make()
        made: Made = self._made[name]
        return made

    def seconds_at_best(self, num_bytes: float, flops: float = 0.0) -> float | None:
        """The longer of reading so many bytes and doing so many operations; None where neither is known."""
        if self.order.bytes_per_second is None or self.order.flops_per_second is None:
            return None
        return max(num_bytes / self.order.bytes_per_second, flops / self.order.flops_per_second)

    def facts(self, **facts: Any) -> None:
        self._tell("facts", facts)

    def tell(
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
        """is_time: a time or a rate, which means nothing where nothing is timed."""
        if is_time and self.order.untimed is not None:
            value, floor, spread, error = None, None, None, error or self.order.untimed
        ratio = value / floor if value is not None and floor else None
        self._tell("record", asdict(Record(self.order.part, name, shape, value, unit, floor, ratio, spread, error)))

    def is_usable(self) -> bool:
        """Whether the device still answers: after an illegal address it never does again."""
        if self.order.device != "cuda":
            return True
        import torch

        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True


def first_line(error: Exception) -> str:
    """The kind of an error, and of what it says the first line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"


def run_cases(cases: list[Case], context: Context, tell: Callable[[str, Any], None]) -> int:
    order = context.order
    tell("cases", [case.name for case in cases])
    cases = [case for case in cases if case.name not in order.skip]
    for case in cases[:1] if order.is_alone else cases:
        left = order.deadline - time.time()
        tell("begin", case.name)
        if left < case.seconds:
            reason = f"skipped: {max(left, 0):.0f} s left of its part, it takes about {case.seconds:.0f}"
            context.tell(case.name, "", error=reason, is_time=False)
            continue
        try:
            case.run(context)
        except Exception as error:
            context.tell(case.name, "", error=first_line(error), is_time=False)
            print(f"{order.part}: {case.name}", file=sys.stderr)
            sys.excepthook(type(error), error, error.__traceback__)
            if not context.is_usable():
                return DEVICE_LOST
    return 0


def main() -> None:
    order = Order(**json.loads(sys.argv[2]))
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints must not end up between the answers

    def tell(kind: str, content: Any) -> None:
        print(json.dumps({kind: content}), file=answers, flush=True)

    module = importlib.import_module(sys.argv[1])
    context = Context(order, tell)
    raise SystemExit(run_cases(module.cases(context), context, tell))


if __name__ == "__main__":
    main()
