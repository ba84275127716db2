"""RayRanks: starts the other ranks of a model as actors of Ray, on its machines.

An actor is to Ray what a headless node is to a supervisor: it starts the process of one rank, which connects to rank 0
as ranks of other nodes do, and ends with it.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from ...config import Resolved, read_machine_spec
from ..rank_link import Start
from .child import RankChild
from .limits import JOIN_LIMIT_S
from .secret import VARIABLE, hash_of

_POLL_S = 0.25


class CannotUseRay(OSError):
    """Ray is not installed, not reachable, or has no place for the ranks."""


class RankActor:
    """Runs one rank, in a process of its own on the machine of the actor."""

    def run(self, resolved: str, rank: int, secret: str) -> str:
        """Until the process ends. Returns how it has ended."""
        values = Resolved.model_validate_json(resolved)
        values = values.model_copy(update={"machine": read_machine_spec()})
        child = RankChild(rank, {}, ["--joins"], {**os.environ, VARIABLE: secret})
        try:
            child.link.send(Start(values.model_dump_json()))
            while child.process.poll() is None:
                time.sleep(_POLL_S)
                if child.is_stopped():
                    return "is stopped"
            return child.end()
        finally:
            child.close()


class RayRanks:
    def __init__(self, resolved: Resolved, report: Callable[[str], None]) -> None:
        """Connects to the cluster of RAY_ADDRESS, or starts Ray on this machine, and reserves a place for each rank.

        report: called with what this waits for. Raises CannotUseRay.
        """
        if find_spec("ray") is None:
            raise CannotUseRay("`parallel.distributed_executor_backend: ray` needs Ray: install the extra `ray`")
        import ray

        self._resolved, self._secret = resolved, secrets.token_hex(16)
        self._running: dict[Any, int] = {}  # rank by the reference of its actor's call
        self._actors: list[Any] = []
        self._group: Any = None
        report("connecting to Ray")
        with _own_signals():
            try:
                ray.init(ignore_reinit_error=True, include_dashboard=False, configure_logging=False)
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise CannotUseRay(f"Ray cannot be used: {error}") from None
        self.address: str = ray.util.get_node_ip_address()  # of this machine, which the others reach
        try:
            self._reserve(report)
        except BaseException:
            self.close()
            raise

    @property
    def secret_hash(self) -> str:
        return hash_of(self._secret)

    def start(self, port: int) -> None:
        """Starts the actors. port: of this machine, where rank 0 waits for the ranks."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        where = {"master_addr": self.address, "master_port": port}
        parallel = self._resolved.parallel.model_copy(update=where)
        config = self._resolved.model_copy(update={"parallel": parallel}).model_dump_json()
        bundle = self._bundle()
        for rank in range(1, parallel.num_ranks):
            options = {
                "num_cpus": bundle["CPU"],
                "memory": bundle["memory"],
                "max_restarts": 0,
                "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, rank - 1),
                "name": f"stoker rank {rank} of {os.getpid()}",
            }
            actor = ray.remote(RankActor).options(**options).remote()
            self._actors.append(actor)
            self._running[actor.run.remote(config, rank, self._secret)] = rank

    def ended(self) -> str:
        """Which rank has ended, and how; empty if none has."""
        import ray

        done, _ = ray.wait(list(self._running), timeout=0)
        if not done:
            return ""
        try:
            how = ray.get(done[0])
        except ray.exceptions.RayError as error:
            how = f"was lost by Ray: {str(error).splitlines()[0]}"
        return f"rank {self._running[done[0]]} of the model (an actor of Ray) {how}"

    def close(self) -> None:
        """Ends the actors and gives their place back."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
        if self._group is not None:
            ray.util.remove_placement_group(self._group)
        self._actors, self._group = [], None

    def _bundle(self) -> dict[str, float]:
        """What Ray reserves for a rank."""
        memory = self._resolved.memory
        return {"CPU": self._resolved.device.num_threads, "memory": memory.total_bytes}

    def _reserve(self, report: Callable[[str], None]) -> None:
        import ray

        bundle, count = self._bundle(), self._resolved.parallel.num_ranks - 1
        what = f"{count} x {bundle['CPU']:g} CPUs and {bundle['memory'] / 2**30:.1f} GiB"
        report(f"waiting for Ray to reserve {what}")
        self._group = ray.util.placement_group([bundle] * count, strategy="PACK")
        if not self._group.wait(JOIN_LIMIT_S):
            has = ray.cluster_resources()
            there = f"{has.get('CPU', 0):g} CPUs and {has.get('memory', 0) / 2**30:.1f} GiB"
            raise CannotUseRay(f"Ray has not reserved {what} within {JOIN_LIMIT_S:g} s; all machines have {there}")


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps the handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
