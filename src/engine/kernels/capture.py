"""Capture: runs a step once and makes it replayable without Python.

The runners depend only on this interface. A CPU captures a list of native calls (cpu/captured_graph.py), a CUDA device
a CUDA graph (gpu/cuda_graph.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class NotCapturable(RuntimeError):
    """The step computes something that cannot be replayed. The message says what."""

    def __init__(self, reason: str, output: Any = None) -> None:
        """output: what the function returned, if it was called: a second call would change recurrent states again."""
        super().__init__(reason)
        self.output = output


class TooLarge(NotCapturable):
    """The step has more rows than can be captured; one with fewer may be."""


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """A computation whose inputs and output stay at the same addresses."""

    # A tensor or several, of the capture or of the newest replay; valid until any graph of this Capture is replayed.
    output: Any
    replay: Callable[[], None]  # computes again from what the inputs hold now


# Takes a function of no arguments. A CPU calls it once. A GPU calls it several times, and it must give the same result
# each time.
# Raises NotCapturable, and torch.OutOfMemoryError; the function can still be called without capture.
Capture = Callable[[Callable[[], Any]], CapturedGraph]
