"""What a launcher says to each process of a model, in its environment, and the store where the processes meet."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from stoker.config import DeploymentError
from stoker.config.exit_codes import EXIT_ENVIRONMENT
from stoker.config.schema.parallel import ParallelConfig
from stoker.engine.cluster.limits import JOIN_LIMIT_S

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class NotLaunched(DeploymentError):
    """The environment does not come from a launcher that has started this deployment's ranks."""

    exit_code = EXIT_ENVIRONMENT


@dataclass(frozen=True, slots=True)
class Launch:
    rank: int
    world_size: int
    address: str  # of the machine of rank 0
    port: int


def launch_of(parallel: ParallelConfig, env: Mapping[str, str] = os.environ) -> Launch:
    """Raises NotLaunched."""
    size, local_size = parallel.topology.num_ranks, parallel.topology.num_local_ranks
    start = f"`torchrun --nproc-per-node {local_size} script.py`"
    if missing := [name for name in VARIABLES if not env.get(name)]:
        raise NotLaunched(
            f"`parallel.distributed_executor_backend: external_launcher` needs {', '.join(missing)} in the "
            f"environment: start the script with {start}"
        )
    numbers = {name: _number(name, env[name]) for name in VARIABLES if name != "MASTER_ADDR"}
    rank, local_rank, world_size = numbers["RANK"], numbers["LOCAL_RANK"], numbers["WORLD_SIZE"]
    if world_size != size:
        raise NotLaunched(
            f"WORLD_SIZE is {world_size}, and `tensor_parallel_size` {parallel.tensor_parallel_size} times "
            f"`pipeline_parallel_size` {parallel.pipeline_parallel_size} is {size}: "
            f"start as many processes, with {start}"
        )
    if rank >= size:
        raise NotLaunched(f"RANK is {rank}, and WORLD_SIZE {world_size}: ranks are counted from 0")
    on_machine = _number("LOCAL_WORLD_SIZE", env.get("LOCAL_WORLD_SIZE") or str(local_size))
    if local_rank != rank % local_size or on_machine != local_size:
        raise NotLaunched(
            f"RANK {rank} is LOCAL_RANK {local_rank} of {on_machine} on its machine, and `parallel.nnodes: "
            f"{parallel.nnodes}` means {local_size} on each: set `nnodes` to the number of machines"
        )
    return Launch(rank, world_size, env["MASTER_ADDR"], numbers["MASTER_PORT"])


def _number(name: str, value: str) -> int:
    if not value.isdecimal():
        raise NotLaunched(f"{name} is {value!r} in the environment; allowed: an integer from 0")
    return int(value)


class MeetingPoint:
    """The store of the launcher, or one of rank 0: values by name, for the ranks of one LLM."""

    def __init__(self, launch: Launch, limit_s: float = JOIN_LIMIT_S) -> None:
        """limit_s: for all ranks to come. Raises NotLaunched."""
        import torch.distributed as dist
        from torch.distributed.rendezvous import rendezvous

        self._where = f"{launch.address}:{launch.port}"
        try:
            limit = timedelta(seconds=limit_s)
            found, _, _ = next(iter(rendezvous("env://", launch.rank, launch.world_size, timeout=limit)))
            number = found.add(f"stoker/models of rank {launch.rank}", 1)  # a script may have several, in order
        except (RuntimeError, ValueError) as error:
            raise NotLaunched(f"the ranks cannot meet at {self._where}: {error}") from None
        self._store: Any = dist.PrefixStore(f"stoker/{number}", found)  # type: ignore[attr-defined]

    def publish(self, name: str, values: Mapping[str, Any]) -> None:
        self._store.set(name, json.dumps(values))

    def read(self, name: str) -> dict[str, Any]:
        """Waits until another rank has published it. Raises NotLaunched."""
        try:
            values: dict[str, Any] = json.loads(self._store.get(name))
        except RuntimeError as error:
            raise NotLaunched(f"`{name}` was not published at {self._where}: {error}") from None
        return values
