"""Times on a GPU: CUDA graphs between two events, with nothing of their operands in the second-level cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Run = Callable[[], object]
_FLUSHED_BYTES = 256 * 2**20  # more than five times the cache of an H200
_SECONDS = 0.25  # that one measurement takes about
_MOST_ROUNDS = 30


@dataclass(frozen=True, slots=True)
class Timing:
    """Of one run, in microseconds."""

    us: float
    spread: float  # from the 10th to the 90th percentile, over the median


class Timer:
    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        self._flushed = torch.zeros(_FLUSHED_BYTES // 4, device=device) if self._is_gpu else None
        self._sum = torch.zeros((), device=device)

    def measure(self, runs: Sequence[Run], has_graph: bool = True) -> Timing | None:
        """Median time of one of the runs: the same work over operands of their own, one behind the other.

        Without a GPU each runs once, and there is no time to tell.
        has_graph: False for what reads back from the device and so cannot be part of a graph.
        """
        if not self._is_gpu:
            for run in runs:
                run()
            return None
        for run in runs[:2]:  # compiles, and lets libraries make their plans
            run()
        torch.cuda.synchronize()

        def replay() -> None:
            for run in runs:
                run()

        if has_graph:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                replay()
        times = [each / len(runs) for each in self._times(graph.replay if has_graph else replay)]
        middle = statistics.median(times)
        tenths = statistics.quantiles(times, n=10) if len(times) > 2 else [middle] * 9
        return Timing(middle * 1e3, (tenths[-1] - tenths[0]) / middle)

    def _times(self, replay: Run) -> list[float]:
        """Milliseconds of each round but the first."""
        events = []
        began = time.perf_counter()
        for number in range(_MOST_ROUNDS):
            torch.sum(self._flushed, 0, out=self._sum)  # read, not written: nothing is left to be written back
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
