"""DeviceBody: steps on a CUDA device, where the next step can be queued before the current one has ended.

A step is one replay of a graph, from the preparation of its inputs to the sampled tokens (device_step.py).
"""

from __future__ import annotations

import torch

from ...api import StepLaunches
from ...kernels.capture import Capture
from ...step.plan import StepPlan
from ..body import HostBody
from ..heads import Finish
from ..measure import PhaseClock
from .buckets import Buckets
from .device_heads import DeviceHead
from .device_inputs import DeviceInputs
from .device_step import DeviceStep
from .graphs import Graphs


class DeviceBody:
    def __init__(
        self,
        step: DeviceStep,
        inputs: DeviceInputs,
        head: DeviceHead,
        host: HostBody,
        buckets: Buckets,
        capture: Capture | None,
        *,
        is_alone: bool,
    ) -> None:
        """
        host: computes the steps that the head chooses to have computed on the host.
        capture: None where nothing can be captured.
        is_alone: no other rank takes part in a capture, so it may fail.
        """
        self._step, self._inputs, self._head, self._host = step, inputs, head, host
        self.graphs = Graphs(step.compute, step.send_nothing, capture, can_do_without=is_alone)
        self._num_first = self._request_graphs(buckets)
        self._captured = self._single = self._padding_rows = self._padding_tokens = 0

    @property
    def table(self) -> dict[str, str]:
        return {"steps": self.graphs.summary}

    def compute(self, plan: StepPlan) -> Finish:
        """Queues the step of a plan that was applied."""
        choice = self._head.choose(plan)
        shape = choice.shape
        if shape is None:
            self._inputs.to_host(plan)
            result = self._host.compute(plan)()
            self._inputs.to_device(plan, result)
            self._head.computed_on_host(plan)
            return lambda: result
        self._step.send(plan, shape, choice.again)
        if self.graphs.has(shape):
            self._captured += 1
        else:
            self._single += 1
        self._padding_rows += shape.num_rows - plan.num_rows
        self._padding_tokens += shape.num_tokens - plan.num_batched_tokens
        return self._head.begin(plan, choice, self.graphs.run(shape))

    def warm_up(self, phases: PhaseClock) -> None:
        """Captures the graphs that the first requests need."""
        phases.start("graphs")
        for _ in range(self._num_first):
            if not self.idle():
                break
        phases.stop()

    @torch.inference_mode()
    def idle(self) -> bool:
        """Captures one more graph, which no step may use meanwhile. Returns False when none is left."""
        if self.graphs.has_pending:
            self._head.before_capture()
        return self.graphs.capture_next()

    def forget(self) -> None:
        self._host.forget()

    def launches(self) -> StepLaunches:
        host = self._host.launches().kernels
        return StepLaunches(self._captured, self._single, host, self._padding_rows, self._padding_tokens)

    def _request_graphs(self, buckets: Buckets) -> int:
        """Request graphs of all shapes. Returns the number to capture before the first request: decode steps on the
        sampler's fast path, and one with the full sampler, so that its kernels are compiled."""
        shapes = buckets.all_shapes()
        hot = [shape for shape in shapes if shape.tokens_per_row and (not shape.flags or shape.num_rows == 1)]
        self.graphs.request(hot)
        self.graphs.request(shape for shape in shapes if shape not in hot)
        return len(hot)
