"""RayPlaces: what a Ray cluster reserves for several actors of one kind, and the actors there."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from ...config import Resolved
from .limits import JOIN_LIMIT_S, SILENCE_S

_POLL_S = 0.25


class CannotUseRay(OSError):
    """Ray is not installed, not reachable, or has no place for the actors."""


def bundle_of(resolved: Resolved, num_ranks: int) -> dict[str, float]:
    """What `num_ranks` processes of a model need together."""
    return {"CPU": num_ranks * resolved.device.num_threads, "memory": num_ranks * resolved.memory.total_bytes}


class RayPlaces:
    def __init__(self, option: str, report: Callable[[str], None]) -> None:
        """Connects to the cluster of RAY_ADDRESS or of `ray start` here, or starts Ray. Raises CannotUseRay.

        option: what asks for Ray. report: called with what this waits for.
        """
        if find_spec("ray") is None:
            raise CannotUseRay(f"`{option}` needs Ray: install the extra `ray`")
        import ray

        self._report = report
        self._actors: dict[int, Any] = {}
        self._names = itertools.count()
        self._group: Any = None
        self._bundle: Mapping[str, float] = {}
        report("connecting to Ray")
        _check_address(os.environ.get("RAY_ADDRESS", ""))
        with own_signals():
            try:
                ray.init(ignore_reinit_error=True, include_dashboard=False, configure_logging=False)
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise CannotUseRay(f"Ray cannot be used: {error}") from None
        self.address: str = ray.util.get_node_ip_address()  # of this machine, which the others reach

    def reserve(self, bundle: Mapping[str, float], count: int, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Waits for `count` places with `bundle` each, as long as they are wanted. Raises CannotUseRay."""
        import ray

        what = f"{count} x {bundle['CPU']:g} CPUs and {bundle['memory'] / 2**30:.1f} GiB"
        self._report(f"waiting for Ray to reserve {what}")
        self._bundle = bundle
        self._group = ray.util.placement_group([dict(bundle)] * count, strategy="PACK")
        deadline = time.monotonic() + JOIN_LIMIT_S
        while not self._group.wait(_POLL_S):
            if not is_wanted():
                raise CannotUseRay("the places in Ray are not needed any more")
            if time.monotonic() > deadline:
                has = ray.cluster_resources()
                there = f"{has.get('CPU', 0):g} CPUs and {has.get('memory', 0) / 2**30:.1f} GiB"
                raise CannotUseRay(f"Ray has not reserved {what} within {JOIN_LIMIT_S:g} s; all machines have {there}")

    def run(self, index: int, actor_class: type, name: str, *arguments: object) -> Any:
        """A reference to what `run` of a new actor returns, in this place, instead of an earlier actor.

        Raises CannotUseRay."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if (earlier := self._actors.pop(index, None)) is not None:
            ray.kill(earlier)
        options = {
            "num_cpus": self._bundle["CPU"],
            "memory": self._bundle["memory"],
            "max_restarts": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, index),
            "name": f"stoker {name} of {os.getpid()}, start {next(self._names)}",
        }
        try:
            actor = self._actors[index] = ray.remote(actor_class).options(**options).remote()
            return actor.run.remote(*arguments)
        except ray.exceptions.RayError as error:
            raise CannotUseRay(f"Ray starts no actor: {_first_line(error)}") from None

    def close(self) -> None:
        """Ends the actors and gives their place back."""
        import ray

        for actor in self._actors.values():
            ray.kill(actor)
        if self._group is not None:
            ray.util.remove_placement_group(self._group)
        self._actors, self._group = {}, None


def loss(error: Exception) -> str:
    """error: of Ray, about an actor. What was raised there is not in the first line of Ray's message."""
    from ray.exceptions import RayTaskError

    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        return f"has failed: {type(error.cause).__name__}: {' '.join(str(error.cause).split())}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and "ray::" in lines[0]:  # where it was raised, by Ray, and what
        return f"has failed: {lines[-1]}"
    return f"was lost by Ray: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _check_address(address: str) -> None:
    """Ray would wait for minutes. Raises CannotUseRay if nothing listens at HOST:PORT."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=SILENCE_S).close()
    except OSError as error:
        raise CannotUseRay(f"Ray cannot be reached at {address} (RAY_ADDRESS): {error.strerror or error}") from None


@contextmanager
def own_signals() -> Iterator[None]:
    """Keeps the handler of SIGTERM, which Ray replaces: in another thread than the main one only by a handler in C++.

    Only the main thread can set it again, so that it uses this around the wait for another thread too.
    """
    if threading.current_thread() is not threading.main_thread():
        log = logging.getLogger("ray._private.worker")
        log.addFilter(_is_of_others)
        try:
            yield
        finally:
            log.removeFilter(_is_of_others)
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_of_others(record: logging.LogRecord) -> bool:
    """Whether a line is about something else than the handler that is kept."""
    return "SIGTERM" not in record.getMessage()
