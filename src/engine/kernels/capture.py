"""Capture: what a kernel set offers to run the same ops again without Python. A program here; a CUDA graph on a GPU.

Whoever captures keeps what the ops read at the same addresses, and reads the output before the next replay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Captured:
    """What was computed, and how to compute it again."""

    output: torch.Tensor  # written anew by every replay
    replay: Callable[[], None] | None  # None: it cannot be had
    reason: str = ""  # why not


# Runs a function once and notes what it does. Its output is right whether or not it can be replayed.
Capture = Callable[[Callable[[], torch.Tensor]], Captured]
