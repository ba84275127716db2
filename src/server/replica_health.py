"""State of the servers that a supervisor has started, one for each replica. Rules only: answers are passed in.

A probe fails if it has no answer in time, or if the server answers that it has to be replaced. A server that restarts
its engine is not ready, and is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import engine_errors
from .protocol.errors import ApiError, unavailable


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """Of one server, as its own /livez and /readyz say. reason: empty if it is ready."""

    is_alive: bool
    is_ready: bool
    state: str
    reason: str


class ReplicaHealth:
    """One server, through all its starts.

    Attributes:
        state: `starting`, `restarting`, `unresponsive`, or what the server said, such as `ready`.
        reason: why it is not ready; empty if it is.
    """

    def __init__(self, threshold: int, timeout_s: float) -> None:
        """threshold: of failed probes in succession. timeout_s: of a probe, for the reason."""
        self._threshold = threshold
        self._timeout_s = timeout_s
        self.state, self.reason = "starting", "the server is starting"
        self.has_served = False
        self.num_failed = 0  # probes in succession
        self.num_restarts = 0
        self.is_overdue = False  # it has not accepted requests in the time that a start may take

    @property
    def is_ready(self) -> bool:
        return not self.reason

    @property
    def must_be_replaced(self) -> bool:
        return self.is_overdue or self.num_failed >= self._threshold

    def listens(self) -> None:
        self.has_served = True
        self.num_failed = 0
        self.state, self.reason = "ready", ""

    def probed(self, answer: ProbeAnswer | None) -> None:
        """answer: None if there was none in time."""
        self.num_failed = 0 if answer is not None and answer.is_alive else self.num_failed + 1
        if answer is None:
            failed = f"{self.num_failed} of {self._threshold} probes"
            self.state, self.reason = "unresponsive", f"no answer to {failed} within {self._timeout_s:g} s"
        else:
            self.state, self.reason = answer.state, "" if answer.is_ready else answer.reason

    def overdue(self, limit_s: float) -> None:
        """limit_s: of its start, in which it has not accepted requests."""
        self.is_overdue = True
        self.state, self.reason = "unresponsive", f"the server has not accepted requests within {limit_s:g} s"

    def restarts(self, reason: str) -> None:
        """It has ended, and is started again."""
        self.num_failed, self.is_overdue = 0, False
        self.num_restarts += 1
        self.state, self.reason = "restarting", reason

    def waits(self, reason: str) -> None:
        """It is started again as soon as it can be. reason: why it cannot."""
        self.reason = reason


def readiness(
    replicas: Mapping[int, ReplicaHealth], *, is_draining: bool, is_one_enough: bool = False
) -> ApiError | None:
    """Why the servers together are not ready, once all have started: as soon as one is not, or, with `is_one_enough`,
    when none is. None if they are."""
    if is_draining:
        return engine_errors.shutting_down()
    if starting := [rank for rank, each in replicas.items() if not each.has_served]:
        return unavailable(f"the servers of these replicas are starting: {_list(starting)}", code="engine_starting")
    missing = [rank for rank, each in replicas.items() if not each.is_ready]
    if missing and not (is_one_enough and len(missing) < len(replicas)):
        return unavailable(f"the servers of these replicas are not ready: {_list(missing)}", code="replica_not_ready")
    return None


def state_of_all(replicas: Mapping[int, ReplicaHealth], error: ApiError | None = None) -> dict[str, Any]:
    """The states and reasons by rank; with an error the fields of all error responses too."""
    found: dict[str, Any] = {"replicas": {str(rank): each.state for rank, each in replicas.items()}}
    if reasons := {str(rank): each.reason for rank, each in replicas.items() if each.reason}:
        found["reasons"] = reasons
    if error is None:
        return {"status": "ok", **found}
    return {**error.body, "status": error.code, "reason": error.message, **found}


def _list(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
