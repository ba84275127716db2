"""Graphs: what is computed for a shape of step, captured once and replayed as a whole.

Inputs and results lie at addresses that stay. All graphs share one pool of memory, since none runs beside another: what
a graph computed is there until the next one is replayed. So nobody holds a result for long: it would keep its memory
from the graphs to come, and logits of a few hundred rows for each of some fifty graphs are gigabytes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

import torch

from .buckets import StepShape

logger = logging.getLogger(__name__)
NOT_CUDA = "kernels called one by one: Triton's interpreter has no graphs"


class _Unowned:
    """Where a contiguous tensor lies, as whoever does not keep its memory may see it: integers of the same width."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": f"<i{tensor.element_size()}",
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


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

        Where it cannot be, for lack of memory or else, the graphs stay that there are: other steps are launched kernel
        by kernel. Raises RuntimeError if it is the device that fails.
        """
        if not self._wanted:
            return False
        shape = self._wanted.popleft()
        try:
            self._replays[shape] = self._capture(shape)
        except torch.OutOfMemoryError as error:
            logger.warning("no memory for more than %d graphs: %s", len(self._replays), error)
            self._wanted.clear()
        except RuntimeError as error:
            torch.cuda.synchronize()  # raises what a kernel did, and nothing after a mere failure to capture
            logger.error("%s cannot be captured, nor are others: steps are slower", shape, exc_info=error)
            self._wanted.clear()
        return bool(self._wanted)

    def _capture(self, shape: StepShape) -> tuple[Callable[[], None], torch.Tensor]:
        self._send_nothing(shape)
        self._compute(shape)  # what is made on first use is made outside of the graph
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.stream(torch.cuda.current_stream()),  # again afterwards: a capture that fails leaves its own
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            logits = self._compute(shape)
        return graph.replay, torch.as_tensor(_Unowned(logits), device=logits.device).view(logits.dtype)

    def run(self, shape: StepShape) -> torch.Tensor:
        """What `compute` returns, by a replay where the shape was captured. Good until the next call."""
        found = self._replays.get(shape)
        if found is None:
            return self._compute(shape)
        replay, logits = found
        replay()
        return logits
