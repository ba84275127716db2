"""RayRanks: starts the other ranks of a model as actors of Ray, on its machines.

An actor is to Ray what a headless node is to a supervisor: it starts the process of one rank, which connects to rank 0
as ranks of other nodes do, and ends with it.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from typing import Any

from ...config import Resolved, read_machine_spec
from ..transport.rank_messages import Start
from .child import COMMAND, RankChild
from .nsight import under_nsight
from .ray_places import RayPlaces, bundle_of, loss
from .secret import VARIABLE, hash_of

_POLL_S = 0.25


class RankActor:
    """Runs one rank, in a separate process on the machine of the actor."""

    def run(self, resolved: str, rank: int, secret: str) -> str:
        """Run a rank until its process ends. Returns how it has ended."""
        values = Resolved.model_validate_json(resolved)
        values = values.model_copy(update={"machine": read_machine_spec()})
        command = under_nsight(COMMAND, rank) if values.parallel.ray_workers_use_nsight else COMMAND
        child = RankChild(rank, {}, ["--joins"], {**os.environ, VARIABLE: secret}, command)
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
        """Reserves a place for each rank. report: called with what this waits for. Raises CannotUseRay."""
        self._resolved, self._secret = resolved, secrets.token_hex(16)
        self._running: dict[Any, int] = {}  # rank by the reference of its actor's call
        self._places = RayPlaces("parallel.distributed_executor_backend: ray", report)
        self.address = self._places.address
        try:
            self._places.reserve(bundle_of(resolved, 1), resolved.topology.num_ranks - 1)
        except BaseException:
            self.close()
            raise

    @property
    def secret_hash(self) -> str:
        return hash_of(self._secret)

    def start(self, port: int) -> None:
        """Starts the actors. port: of this machine, where rank 0 waits for the ranks."""
        where = {"master_addr": self.address, "master_port": port}
        parallel = self._resolved.parallel.model_copy(update=where)
        config = self._resolved.model_copy(update={"parallel": parallel}).model_dump_json()
        for rank in range(1, self._resolved.topology.num_ranks):
            running = self._places.run(rank - 1, RankActor, f"rank {rank}", config, rank, self._secret)
            self._running[running] = rank

    def ended(self) -> str:
        """Rank that has ended, and how; empty if none has."""
        import ray

        done, _ = ray.wait(list(self._running), timeout=0)
        if not done:
            return ""
        try:
            how = ray.get(done[0])
        except ray.exceptions.RayError as error:
            how = loss(error)
        return f"rank {self._running[done[0]]} of the model (an actor of Ray) {how}"

    def close(self) -> None:
        """Ends the actors and gives their place back."""
        self._places.close()
