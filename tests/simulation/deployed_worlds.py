"""Worlds of whole deployments: replicas whose processes, ranks and stores fail, and the story of their clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal

from stoker.engine.core import SchedulerSettings

from .deployed_actions import Action, FailStart, FailStep, Kill, LoseRank, Pass, Stall, StallRank, Tick
from .deployment import Deployment, DeploymentSettings
from .simulation import Abort, Drain, FailStore
from .stores import FILE_FAULTS, StoreSettings
from .worlds import Arrivals, Broken, World


@dataclass(frozen=True, slots=True)
class DeployedWorld:
    name: str
    settings: SchedulerSettings
    depth: int  # steps in flight, of each engine
    deployment: DeploymentSettings

    @classmethod
    def of(cls, name: str, *, is_kept_up: bool = False) -> DeployedWorld:
        """is_kept_up: engines are always started again. Engines of several ranks have no store, as in reality."""
        random = Random(f"deployed {name}")
        kind: Literal["files", "engines", "both"] = random.choice(["files", "engines", "both"])  # type: ignore[assignment]
        stores = StoreSettings(kind, random.choice([9, 60, 300]), random.choice([0.0, 0.3]))
        num_others = random.choice([0, 0, 1, 2])
        deployment = DeploymentSettings(
            num_replicas=random.choice([1, 2, 3]),
            num_others=num_others,
            max_restarts=1000 if is_kept_up else random.choice([0, 2, 1000, 1000]),
            stores=None if num_others or random.random() < 0.2 else stores,
        )
        fixed = {} if deployment.stores is None else {"num_kept_states": 0, "enable_prefix_caching": True}
        world = World.of(name, **fixed)  # type: ignore[arg-type]
        return cls(name, world.settings, world.depth, deployment)

    def begin(self) -> Deployment:
        return Deployment(self.name, self.settings, self.depth, self.deployment)


def run_deployed_story(world: DeployedWorld, num_steps: int) -> Deployment:
    """Run the world's story to its end. Raises Broken."""
    deployment = world.begin()
    try:
        for action in _story(deployment, world.deployment, Random(f"story of deployed {world.name}"), num_steps):
            deployment.apply(action)
    except Exception as error:
        raise Broken(world, deployment.script, error) from error
    finally:
        deployment.close()
    return deployment


def _story(deployment: Deployment, settings: DeploymentSettings, random: Random, num_steps: int) -> Iterator[Action]:
    arrivals = Arrivals(deployment, random)
    arrival_rate = random.choice([0.05, 0.15, 0.4])
    abort_rate = random.choice([0.0, 0.01, 0.05])
    fault_rate = random.choice([0.01, 0.02, 0.05])
    store_fault_rate = random.choice([0.0, 0.1]) if settings.stores is not None else 0.0
    num_ticks = 0
    while deployment.num_steps < num_steps and num_ticks < 4 * num_steps and not deployment.is_over:
        num_ticks += 1
        if random.random() < arrival_rate:
            for _ in range(random.choice([1, 1, 2, 9])):
                yield from arrivals.arrive()
        if deployment.live and random.random() < abort_rate:
            yield Abort(random.choice(deployment.live))
        if random.random() < store_fault_rate:
            yield FailStore(random.choice(FILE_FAULTS), random.randrange(1 << 16))
        if random.random() < fault_rate:
            yield _fault(random, random.randrange(settings.num_replicas))
        yield Tick()
    yield Drain()


def _fault(random: Random, replica: int) -> Action:
    rank = random.randrange(4)
    return random.choice(
        [
            FailStep(replica),
            Kill(replica),
            LoseRank(replica, rank, in_step=True),
            LoseRank(replica, rank, in_step=False),
            StallRank(replica, rank),
            Stall(replica, random.choice([3, 30, 600]), is_silent=random.random() < 0.5),
            FailStart(replica),
            Pass(random.choice([1.0, 30.0])),
        ]
    )
