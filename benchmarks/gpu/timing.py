"""Times functions on a GPU: CUDA graphs between two events, with operands flushed from the L2 cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Run = Callable[[], object]
_FLUSHED_BYTES = 256 * 2**20  # more than five times the L2 cache of an H200
_SECONDS = 0.25  # approximate duration of one measurement
_MAX_ROUNDS = 30


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of one run, in microseconds."""

    us: float
    spread: float  # from the 10th to the 90th percentile, over the median


class Timer:
    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        self._flushed = torch.zeros(_FLUSHED_BYTES // 4, device=device) if self._is_gpu else None
        self._sum = torch.zeros((), device=device)

    def measure(self, runs: Sequence[Run], has_graph: bool = True) -> Timing | None:
        """Median time of one run. runs: the same work, each with a separate copy of the operands; executed in order.

        Without a GPU each runs once, and the result is None.
        has_graph: False if a run copies from the device, which cannot be captured in a graph.
        """
        if not self._is_gpu:
            for run in runs:
                run()
            return None
        for run in runs[:2]:  # compiles kernels and initialises libraries
            run()
        torch.cuda.synchronize()

        def run_all() -> None:
            for run in runs:
                run()

        if has_graph:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run_all()
        times = [each / len(runs) for each in self._times(graph.replay if has_graph else run_all)]
        middle = statistics.median(times)
        tenths = statistics.quantiles(times, n=10) if len(times) > 2 else [middle] * 9
        return Timing(middle * 1e3, (tenths[-1] - tenths[0]) / middle)

    def _times(self, replay: Run) -> list[float]:
        """Milliseconds of each round except the first."""
        events = []
        began = time.perf_counter()
        for number in range(_MAX_ROUNDS):
            torch.sum(self._flushed, 0, out=self._sum)  # reads only, so no cache lines remain to be written back
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            replay()
            end.record()
            events.append((start, end))
            if number % 5 == 4:
                end.synchronize()
                if time.perf_counter() - began > _SECONDS:
                    break
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events[1:]]
