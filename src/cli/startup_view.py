"""The start of a deployment as timed phases: a live tree on a terminal, one line per phase elsewhere.

with StartupView("tiny", is_live=False) as view:
    view.begin("engine")
    view.part("weights")        #     weights          0.31 s
    view.part("self-test")      #     self-test        0.02 s
                                #   engine           0.35 s
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from .console import print_message

logger = logging.getLogger(__name__)


@dataclass
class Phase:
    """A phase, or a part of one."""

    name: str
    began: float
    note: str = ""  # the result of a phase; of a part the progress, while it goes on
    seconds: float | None = None  # None: still going on
    parts: list[Phase] = field(default_factory=list)


class StartupView:
    """Phases are sequential: beginning one ends the previous one. `part` begins a phase within the current one.

    Use as a context manager, so that an error is printed below it.
    """

    def __init__(self, title: str, *, is_live: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        """is_live: standard error is a terminal on which the tree can be updated."""
        self._title = title
        self._clock = clock
        self._began = clock()
        self._phases: list[Phase] = []
        self._is_closed = False
        self._live: Live | None = None
        if is_live:
            self._live = Live(get_renderable=self._tree, console=Console(stderr=True), refresh_per_second=8)

    def __enter__(self) -> StartupView:
        if self._live is not None:
            self._live.start()
        else:
            print_message(self._title)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the last phase and stop updating the terminal. May be called again; later parts are logged."""
        self._is_closed = True
        self._end_phase()
        if self._live is not None:
            self._live.stop()

    @property
    def seconds(self) -> float:
        """Seconds since the view was made."""
        return self._clock() - self._began

    @property
    def timings(self) -> dict[str, float]:
        """Seconds of each phase that has ended, and of its parts: `engine`, `engine: weights`."""
        found: dict[str, float] = {}
        for phase in self._phases:
            found[phase.name] = phase.seconds or 0.0
            found |= {f"{phase.name}: {part.name}": part.seconds or 0.0 for part in phase.parts}
        return found

    def begin(self, name: str) -> None:
        self._end_phase()
        self._phases.append(Phase(name, self._clock()))

    def part(self, name: str) -> None:
        """Begin a part; `weights: 42 %` is the progress of the part `weights`."""
        name, _, progress = name.partition(": ")
        if self._is_closed:  # the engine is started again while the server runs
            if not progress:
                logger.info("engine start: %s", name)
            return
        parts = self._phases[-1].parts
        if progress and parts and parts[-1].name == name:
            parts[-1].note = progress if parts[-1].seconds is None else ""
            return
        self._end_part()
        parts.append(Phase(name, self._clock()))

    def beside(self, name: str, seconds: float) -> None:
        """A part that took this time in parallel to the others."""
        parts = self._phases[-1].parts
        self._end_part()
        parts.append(Phase(name, self._clock() - seconds, "at the same time", seconds))
        if self._live is None:
            print_message("    " + _line(parts[-1], seconds))

    def note(self, text: str) -> None:
        """Add the result of the current phase."""
        self._phases[-1].note = text

    def _end_phase(self) -> None:
        """End the current phase, if there is one, and its last part."""
        if self._phases and self._phases[-1].seconds is None:
            self._end_part()
            self._end(self._phases[-1], "  ")

    def _end_part(self) -> None:
        """End the last part of the current phase, if it has one that goes on."""
        parts = self._phases[-1].parts
        if parts and parts[-1].seconds is None:
            parts[-1].note = ""  # its progress
            self._end(parts[-1], "    ")

    def _end(self, phase: Phase, indent: str) -> None:
        phase.seconds = self._clock() - phase.began
        if self._live is None:
            print_message(indent + _line(phase, phase.seconds))

    def _tree(self) -> Tree:
        tree = Tree(Text(self._title, style="bold"))
        self._grow(tree, self._phases)
        return tree

    def _grow(self, tree: Tree, phases: list[Phase]) -> None:
        for phase in phases:
            seconds = self._clock() - phase.began if phase.seconds is None else phase.seconds
            branch = tree.add(Text(_line(phase, seconds), style="yellow" if phase.seconds is None else ""))
            self._grow(branch, phase.parts)


def _line(phase: Phase, seconds: float) -> str:
    return f"{phase.name:<14} {seconds:6.2f} s  {phase.note}".rstrip()
