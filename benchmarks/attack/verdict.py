"""Judges one attack by what the bystander, the process table and the log showed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .bystander import Latencies, Observed
from .catalogue import Attack
from .server import Usage

HEALTH_P99_MS, HEALTH_MAX_MS = 100.0, 1000.0  # the promise
IDLE_P99_MS = 15.0  # of /health on a machine with nothing else to do
MAX_SLOWNESS = 10.0
MORE_FDS, MORE_THREADS, MORE_PROCESSES = 16, 16, 2  # pools and helpers that start with the first use
MAX_LOG_LINES = 300  # of one attack


def slowness(calibrated: Latencies) -> float:
    """How many times slower than an idle machine this one is, by the latency of a server that is not attacked."""
    return round(min(MAX_SLOWNESS, max(1.0, calibrated.p99 / IDLE_P99_MS)), 2)


@dataclass
class Verdict:
    id: str
    reasons: list[str]  # why it fell; empty if it held
    note: str = ""
    seconds: float = 0.0
    slowness: float = 1.0
    observed: Observed | None = None
    before: Usage | None = None
    after: Usage | None = None
    peak_mib: float | None = None
    repeat: str = ""

    @property
    def held(self) -> bool:
        return not self.reasons

    @property
    def family(self) -> str:
        return self.id.partition("/")[0]

    def as_dict(self) -> dict[str, Any]:
        return {"held": self.held, **asdict(self)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Verdict:
        read: dict[str, Any] = {name: value for name, value in fields.items() if name != "held"}
        for name in ("before", "after"):
            read[name] = read[name] and Usage(**read[name])
        if read["observed"]:
            read["observed"] = Observed(**{name: Latencies(**each) for name, each in read["observed"].items()})
        return cls(**read)


@dataclass
class Traces:
    """What is left of an attack when it has ended and the server had time to settle."""

    before: Usage
    after: Usage
    peak_mib: float
    observed: Observed
    log: str  # written during the attack
    golden: tuple[str, str] = ("", "")  # answers to one request, before and after
    problems: list[str] = field(default_factory=list)  # found on the way


def judge(attack: Attack, traces: Traces, slow: float) -> list[str]:
    """Reasons why it fell."""
    reasons = list(traces.problems)
    health = traces.observed.health
    for name, measured, limit in (("p99", health.p99, HEALTH_P99_MS), ("max", health.max, HEALTH_MAX_MS)):
        if measured > limit * slow:
            reasons.append(f"/health {name} was {measured:.0f} ms; promised are {limit:.0f} ms (x {slow})")
    if not attack.bystander_may_fail:
        for path, seen in (("/health", health), ("a completion", traces.observed.completion)):
            if seen.failed:
                count = f"{len(seen.failed)} of {len(seen.failed) + seen.num}"
                reasons.append(f"{count} requests of the bystander for {path} failed: {seen.failed[0]}")
    grown = traces.peak_mib - traces.before.anonymous_mib
    if grown > attack.memory_mib:
        reasons.append(f"memory grew by {grown:.0f} MiB; allowed are {attack.memory_mib:.0f} MiB")
    for what, limit, was, now in (
        ("descriptors", MORE_FDS, traces.before.num_fds, traces.after.num_fds),
        ("threads", MORE_THREADS, traces.before.num_threads, traces.after.num_threads),
        ("processes", MORE_PROCESSES, traces.before.num_processes, traces.after.num_processes),
    ):
        if now > was + limit:
            reasons.append(f"{now} {what} remain, before there were {was}")
    lines = traces.log.splitlines()
    if any("Traceback" in line for line in lines):
        reasons.append(f"a traceback in the log: {lines[-1][:160]}")
    if len(lines) > MAX_LOG_LINES:
        reasons.append(f"{len(lines)} log lines; the last: {lines[-1][:160]}")
    if traces.golden[0] != traces.golden[1]:
        reasons.append(f"the server answered {traces.golden[0]!r} before, {traces.golden[1]!r} after")
    return reasons
