"""Graphs: one captured graph per step shape; shapes without a graph are computed kernel by kernel."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

import torch

from ...kernels.capture import Capture, CapturedGraph, NotCapturable
from ..step_shape import StepShape

logger = logging.getLogger(__name__)
INTERPRETED = "kernels called one by one: Triton's interpreter has no graphs"
FEWER_GRAPHS = "lower `scheduler.max_num_seqs` or `cache.gpu_memory_utilization`, or write fewer `cuda_graph_sizes`"
NO_GRAPHS = "write `compilation.level: 0`"


class Graphs:
    def __init__(
        self,
        compute: Callable[[StepShape], torch.Tensor],
        send_nothing: Callable[[StepShape], None],
        capture: Capture | None,
        *,
        can_do_without: bool = True,
    ) -> None:
        """
        compute: launches all kernels of a step of this shape, and waits for none of them.
        send_nothing: fills the inputs of `compute` with a step that changes nothing.
        capture: None where nothing can be captured.
        can_do_without: whether a capture may fail. Not where other ranks take part in it: they would wait.
        """
        self._compute, self._send_nothing, self._capture = compute, send_nothing, capture
        self._graphs: dict[StepShape, CapturedGraph] = {}
        self._pending: deque[StepShape] = deque()
        self._num_requested = 0
        self._can_do_without = can_do_without

    @property
    def summary(self) -> str:
        """Text for the start-up table."""
        if self._capture is None:
            return INTERPRETED
        if not self._num_requested:
            return "kernels launched one by one: graphs are switched off"
        return f"CUDA graphs: {len(self._graphs)} captured, {len(self._pending)} more while the engine is idle"

    def request(self, shapes: Iterable[StepShape]) -> None:
        """Adds shapes to capture, the most urgent first."""
        shapes = list(shapes)
        self._num_requested += len(shapes)
        if self._capture is not None:
            self._pending.extend(shapes)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def capture_next(self) -> bool:
        """Captures one requested shape; False when none is left. The device must be idle.

        After a failure no further shape is captured; the graphs captured so far are kept. Raises RuntimeError if the
        device itself has failed; without `can_do_without` also NotCapturable, or MemoryError.
        """
        if not self._pending or self._capture is None:
            return False
        shape = self._pending.popleft()
        self._send_nothing(shape)
        try:
            self._graphs[shape] = self._capture(lambda: self._compute(shape))
        except torch.OutOfMemoryError as error:
            if not self._can_do_without:
                raise MemoryError(f"no memory for more than {len(self._graphs)} graphs; {FEWER_GRAPHS}") from error
            logger.warning("no memory for more than %d graphs: %s", len(self._graphs), error)
            self._pending.clear()
        except NotCapturable as error:
            if not self._can_do_without:
                raise NotCapturable(f"{shape} cannot be captured: {error}; {NO_GRAPHS}") from error
            logger.error("%s cannot be captured, nor are others: steps are slower", shape, exc_info=error)
            self._pending.clear()
        return bool(self._pending)

    def has(self, shape: StepShape) -> bool:
        return shape in self._graphs

    def run(self, shape: StepShape) -> torch.Tensor:
        """Computes a step of this shape from its inputs. The result is valid until the next call."""
        graph = self._graphs.get(shape)
        if graph is None:
            return self._compute(shape)
        graph.replay()
        output: torch.Tensor = graph.output
        return output
