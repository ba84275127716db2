"""Rank 0 of a model on several GPUs: it launches each step on its own one and on those of the other ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api import EngineInfo, StepLaunches
from ..core import StepPlan, StepResult
from ..nodes.rank_link import Capture, DeviceStep
from .followers import Followers, in_step

if TYPE_CHECKING:  # they import torch
    from ..runner.cuda.buckets import StepShape
    from ..runner.cuda.device_runner import DeviceRunner


class OtherDevices:
    """OtherRanks of runner/cuda/step_launcher.py."""

    def __init__(self, others: Followers) -> None:
        self._others = others
        self.check = others.check

    def launch(self, plan: StepPlan, shape: StepShape | None, again: Any) -> None:
        sent = None if shape is None else list(astuple(shape))
        self._others.send(DeviceStep(plan, sent, np.asarray(again, np.int32)))

    def capture_next(self) -> None:
        self._others.send(Capture())


class LeadingDeviceRunner:
    def __init__(self, runner: DeviceRunner, others: Followers) -> None:
        """runner: of rank 0, with OtherDevices and a LeadingSampler."""
        self._runner, self._others = runner, others
        self.info: Callable[[], EngineInfo] = runner.info
        self.launches: Callable[[], StepLaunches] = runner.launches

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        """As DeviceRunner. Raises as `in_step`, which the function that is returned does too."""
        with in_step(self._others):
            wait = self._runner.launch(plan)

        def finish() -> StepResult:
            with in_step(self._others):
                return wait()

        return finish

    def execute(self, plan: StepPlan) -> StepResult:
        """Launches one step and waits for its result."""
        return self.launch(plan)()

    def warm_up(self) -> None:
        with in_step(self._others):
            self._runner.warm_up()

    def idle(self) -> bool:
        """Captures one more graph in all ranks. False when none is left."""
        with in_step(self._others):
            return self._runner.idle()
