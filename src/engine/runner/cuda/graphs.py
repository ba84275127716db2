"""Graphs: what is computed for a shape of step, captured once and replayed as a whole.

Inputs and results lie at addresses that stay. All graphs share one pool of memory, since none runs beside another: what
a graph computed is there until the next one is replayed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

import torch

from .buckets import StepShape

logger = logging.getLogger(__name__)
NOT_CUDA = "kernels called one by one: Triton's interpreter has no graphs"


class Graphs:
    def __init__(
        self,
        compute: Callable[[StepShape], torch.Tensor],
        send_nothing: Callable[[StepShape], None],
        device: torch.device,
    ) -> None:
        """
        compute: all kernels of a step of this shape, and nothing that waits for them.
        send_nothing: makes `compute` a step that changes nothing.
        """
        self._compute, self._send_nothing = compute, send_nothing
        self._is_cuda = device.type == "cuda"
        self._replays: dict[StepShape, tuple[Callable[[], None], torch.Tensor]] = {}
        self._wanted: deque[StepShape] = deque()
        self._num_wanted = 0
        self._pool = torch.cuda.graph_pool_handle() if self._is_cuda else None

    @property
    def summary(self) -> str:
        """For the start-up table."""
        if not self._is_cuda:
            return NOT_CUDA
        if not self._num_wanted:
            return "kernels launched one by one: graphs are switched off"
        return f"CUDA graphs: {len(self._replays)} captured, {len(self._wanted)} more when there is nothing to do"

    def want(self, shapes: Iterable[StepShape]) -> None:
        """Names shapes to capture, the most urgent first."""
        shapes = list(shapes)
        self._num_wanted += len(shapes)
        if self._is_cuda:
            self._wanted.extend(shapes)

    def capture_next(self) -> bool:
        """Captures the next shape that is wanted; False when no more are. The device must have nothing to do.

        A device without room for it keeps the graphs that it has: other steps are launched kernel by kernel.
        """
        if not self._wanted:
            return False
        shape = self._wanted.popleft()
        try:
            self._replays[shape] = self._capture(shape)
        except torch.OutOfMemoryError as error:
            logger.warning("no memory for more than %d graphs: %s", len(self._replays), error)
            self._wanted.clear()
        return bool(self._wanted)

    def _capture(self, shape: StepShape) -> tuple[Callable[[], None], torch.Tensor]:
        self._send_nothing(shape)
        self._compute(shape)  # what is made on first use is made outside of the graph
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits = self._compute(shape)
        return graph.replay, logits

    def run(self, shape: StepShape) -> torch.Tensor:
        """What `compute` returns, by a replay where the shape was captured. Good until the next call."""
        found = self._replays.get(shape)
        if found is None:
            return self._compute(shape)
        replay, logits = found
        replay()
        return logits
