"""Assistance: computes a replica's experts, in a step in which it has no tokens, for the tokens of other replicas.

Steps of few rows are captured at the first of each number of rows, and replayed from then on.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..collectives import SharedExperts
from ..kernels import spans
from ..kernels.capture import Capture, CapturedGraph, NotCapturable, TooLarge
from ..layers.expert_weights import Experts
from ..layers.loading import Loadable


class Assistance:
    def __init__(self, replicas: SharedExperts, loadables: Iterable[Loadable], capture: Capture | None) -> None:
        """loadables: of the model, in the order of its layers. capture: None where nothing can be captured."""
        self._replicas, self._capture = replicas, capture
        self._layers = [each for each in loadables if isinstance(each, Experts)]
        self._graphs: dict[int, CapturedGraph] = {}  # by rows
        self._too_large: set[int] = set()  # rows

    def compute(self) -> None:
        """Compute the experts of a step, after `begin` of the replicas."""
        rows = self._replicas.graph_rows
        if self._capture is None or spans.is_profiling or rows is None or rows in self._too_large:
            self._compute()
        elif rows in self._graphs:
            self._graphs[rows].replay()
        else:
            try:
                self._graphs[rows] = self._capture(self._compute)
            except NotCapturable as error:
                if isinstance(error, TooLarge):
                    self._too_large.add(rows)
                else:
                    self._capture = None
                if error.output is None:
                    self._compute()

    def forget(self) -> None:
        """Captured graphs: the tensors that they read are replaced."""
        self._graphs.clear()

    def _compute(self) -> bool:
        """Returns True: that it was called."""
        for layer in self._layers:
            layer.assist(self._replicas)
        return True
