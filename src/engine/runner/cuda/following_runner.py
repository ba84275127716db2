"""FollowingDeviceRunner: another rank than 0 on its own GPU. It computes the steps as rank 0 says, and never waits."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ....config import Resolved
from ...core.step_plan import StepPlan
from ...kernels.spans import span
from ...sampling.sampler import Sampler, TokenSampler
from ..model_runner import Load, ModelRunner
from .buckets import StepShape
from .device_step import Int64
from .step_launcher import StepLauncher


class FollowingDeviceRunner:
    def __init__(self, resolved: Resolved, load: Load, sampler_of: Callable[[Sampler], TokenSampler]) -> None:
        """Loads this rank's part of the model. load, sampler_of: as ModelRunner; the second for steps on the host.

        Raises what DeviceRunner raises.
        """
        host = ModelRunner(resolved, load=load, captures_steps=False, sampler_of=sampler_of)
        self.free_memory: Callable[[], None] = host.free_memory
        self.take_memory: Callable[[], None] = host.take_memory
        self._launcher = StepLauncher(resolved, host)
        self._launcher.request_graphs()
        self._is_on_gpu = host.loaded.device.type == "cuda"

    @torch.inference_mode()
    def launch(self, plan: StepPlan, shape: StepShape | None, again: Int64) -> None:
        """As OtherRanks. Raises what the sampler raises."""
        launcher = self._launcher
        with span(f"step {plan.step}"):
            launcher.apply(plan)
            if shape is None:
                launcher.compute_on_host(plan)
                return
            launcher.launch(plan, shape, again)
            if len(again):
                launcher.step.receive_again(again)
                launcher.sampled_again(plan, again)
            launcher.keep(plan)

    @torch.inference_mode()
    def capture_next(self) -> None:
        """Captures the next shape, together with rank 0."""
        if self._is_on_gpu:
            torch.cuda.synchronize()
        self._launcher.graphs.capture_next()
