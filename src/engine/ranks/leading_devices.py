"""OtherDevices: the GPUs of the other ranks, as the runner of rank 0 sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..step import StepPlan
from ..transport.rank_messages import Capture, DeviceStep
from .followers import Followers

if TYPE_CHECKING:  # they import torch
    from ..runner.step_shape import StepShape


class OtherDevices:
    """Implements OtherRanks of runner/cuda/device_heads.py."""

    def __init__(self, others: Followers) -> None:
        self._others = others
        self.check = others.check

    def launch(self, plan: StepPlan, shape: StepShape | None, again: Any) -> None:
        sent = None if shape is None else list(shape)
        self._others.send(DeviceStep(plan, sent, np.asarray(again, np.int32)))

    def capture_next(self) -> None:
        self._others.send(Capture())
