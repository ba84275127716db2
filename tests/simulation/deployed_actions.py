"""Actions of a story about a deployment: deployment.py. One whose engine does not run at the time is ignored."""

from __future__ import annotations

from dataclasses import dataclass

from .simulation import Abort, Add, Drain, FailStore


@dataclass(frozen=True, slots=True)
class Tick:
    """Each engine takes its messages and runs a step."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Time in which nothing happens but what timers do."""

    seconds: float


@dataclass(frozen=True, slots=True)
class FailStep:
    """The next step of an engine fails."""

    replica: int


@dataclass(frozen=True, slots=True)
class Kill:
    """The process of an engine."""

    replica: int


@dataclass(frozen=True, slots=True)
class LoseRank:
    """A rank ends. in_step: in the middle of the next step."""

    replica: int
    rank: int
    in_step: bool


@dataclass(frozen=True, slots=True)
class StallRank:
    """It does nothing any more."""

    replica: int
    rank: int


@dataclass(frozen=True, slots=True)
class Stall:
    """An engine does nothing for a time. is_silent: it sends no heartbeats either."""

    replica: int
    num_ticks: int
    is_silent: bool


@dataclass(frozen=True, slots=True)
class FailStart:
    """The next start of an engine fails."""

    replica: int


Action = Add | Abort | Tick | Pass | FailStep | Kill | LoseRank | StallRank | Stall | FailStart | FailStore | Drain
