"""Worlds: a random deployment and the random story of its clients, both determined by the name of the world."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, Protocol

from tests.fake_adapters import FakeStore

from stoker.engine.api import SamplingParams, StoredBlocks
from stoker.engine.core import SchedulerSettings
from stoker.engine.core.adapter_slots import AdapterSettings
from stoker.engine.core.settings import PoolingSettings
from stoker.engine.loop.adapter_reader import AdapterReader

from .deployment import Deployment
from .simulation import Abort, Add, Drain, Execute, Fail, FailStore, Finish, Plan, Simulation
from .stores import FILE_FAULTS, Stores, StoreSettings
from .truth import CURSED_TOP_K, EOS, FORCED_TOP_K, NUM_SALTS, VOCAB, WHOLE_TASKS

WINDOWS: list[tuple[int | None, ...]] = [  # of groups of layers
    *[(None,)] * 4, (5,), (1,), (40,), (None, 9), (None, 1), (12, None, 12), (None, 30, 4), (3, 20, 20, 20),
]  # fmt: skip


ADAPTERS = ("", "a", "a", "b", "c", "d")


@dataclass(frozen=True, slots=True)
class World:
    name: str
    settings: SchedulerSettings
    depth: int  # steps in flight
    stores: StoreSettings | None = None
    has_drafts: bool = False

    @classmethod
    def of(cls, name: str, depth: int | None = None, **fixed: object) -> World:
        """fixed: settings that are not random."""
        random = Random(name)
        chosen = depth or random.choice([1, 1, 2, 2, 3])
        return cls(name, _settings(random, fixed), chosen)

    @classmethod
    def with_stores(cls, name: str, *, fails: bool = True) -> World:
        """fails: whether connections do; files always do."""
        random = Random(f"stored {name}")
        kind: Literal["files", "engines", "both"] = random.choice(["files", "engines", "both"])  # type: ignore[assignment]
        stores = StoreSettings(kind, random.choice([2, 9, 60, 300]), random.choice([0.1, 0.5]) if fails else 0.0)
        return replace(cls.of(name, num_kept_states=0, enable_prefix_caching=True), stores=stores)

    def begin(self) -> Simulation:
        stores = None if self.stores is None else Stores(self.name, self.stores, self.settings)
        return Simulation(self.settings, self.depth, stores, has_drafts=self.has_drafts)

    @classmethod
    def with_drafts(cls, name: str, **fixed: object) -> World:
        """Without recurrent states, unless `fixed` has some."""
        return replace(cls.of(f"drafts {name}", **{"num_kept_states": 0, **fixed}), has_drafts=True)

    @classmethod
    def with_adapters(cls, name: str) -> World:
        random = Random(name)
        max_loras = random.choice([1, 1, 2, 3])
        store = FakeStore(max_loras + random.choice([0, 0, 1, 5]))
        settings = AdapterSettings(max_loras, AdapterReader(store, waits=True))
        return cls.of(f"adapters {name}", adapters=settings)

    @classmethod
    def with_pooling(cls, name: str, **fixed: object) -> World:
        """Half of the requests are pooled, or all of a model that generates nothing."""
        random = Random(name)
        pooling = PoolingSettings(WHOLE_TASKS, generates=random.random() < 0.8)
        return cls.of(f"pooling {name}", pooling=pooling, **fixed)

    @classmethod
    def short_of_window_blocks(cls, number: int) -> World:
        """Several prompts with windows and common prefixes, in a pool for little more than one of them."""
        windows: tuple[int | None, ...] = ((12, 12, 12), (10, None), (10,))[number // 3 % 3]
        return cls.of(
            f"short of blocks {number}",
            depth=3,
            windows=windows,
            block_size=1,
            max_num_seqs=4 + number % 3,
            max_num_batched_tokens=(6, 9)[number % 2],
            max_model_len=80,
            num_blocks=len(windows) * (28, 34, 42)[number % 3],
            enable_prefix_caching=True,
            num_kept_states=0,
            enable_chunked_prefill=True,
            max_queued_requests=20,
            max_queued_tokens=10_000,
        )


def _settings(random: Random, fixed: dict[str, object]) -> SchedulerSettings:
    policy: Literal["fcfs", "priority"] = random.choice(["fcfs", "fcfs", "priority"])  # type: ignore[assignment]
    chunked = fixed.get("enable_chunked_prefill", random.random() < 0.7)
    block_size = random.choice([1, 2, 4, 7, 16])
    max_num_seqs = random.choice([1, 2, 5, 8, 13, 32])
    max_model_len = random.choice([9, 24, 60, 60, 150])
    least_budget = max_num_seqs if chunked else max(max_num_seqs, max_model_len)
    least_blocks = -(-max_model_len // block_size)
    is_tight = random.random() < 0.5  # so that sequences are preempted again and again
    most_blocks = least_blocks + 3 if is_tight else 4 * least_blocks + 3
    windows = random.choice(WINDOWS)
    num_groups = len(fixed.get("windows", windows))  # type: ignore[arg-type]
    num_blocks = random.randint(least_blocks if random.random() < 0.5 else 2, most_blocks)
    settings = SchedulerSettings(
        num_blocks=num_blocks * num_groups + random.randrange(len(windows)) % num_groups,
        windows=windows,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=least_budget + random.choice([0, 1, 10, 50]),
        max_model_len=max_model_len,
        enable_prefix_caching=random.random() < 0.7,
        prefix_caching_hash_algo=random.choice(["sha256", "sha256_cbor", "blake2b"]),  # type: ignore[arg-type]
        max_prefill_share=random.choice([1.0, 0.75, 0.1]),
        max_num_partial_prefills=random.choice([1, 2, 13]),
        max_long_partial_prefills=random.choice([1, 2, 13]),
        long_prefill_token_threshold=random.choice([0, 5, 20]),
        enable_chunked_prefill=bool(chunked),
        scheduling_policy=policy,
        max_queued_requests=random.choice([0, 3, 20]),
        max_queued_tokens=random.choice([30, 200, 10_000]),
        eos_token_ids=(EOS,),
        records_block_events=True,
    )
    settings = replace(settings, **fixed)  # type: ignore[arg-type]
    if not settings.enable_prefix_caching or "num_kept_states" in fixed:
        return settings
    return replace(settings, num_kept_states=random.choice([0, 1, 3, 40]), retention_interval=random.choice([1, 9, 30]))


class Arrivals:
    """Makes requests that have much in common: prompts that extend a few stems, or each other."""

    def __init__(self, simulation: Simulation | Deployment, random: Random) -> None:
        self._simulation = simulation
        self._random = random
        self._num_made = 0
        self._longest = simulation.settings.max_sequence_len - 1
        self._stems = [self._tokens(self._longest) for _ in range(3)]
        self._plain = random.random() < 0.3  # requests want tokens only
        self._long_answers = random.random() < 0.4  # short prompts and long answers, which preempt each other

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(1, VOCAB) for _ in range(count)]

    def arrive(self) -> list[Add]:
        """One request, as one or more sequences."""
        random, clients = self._random, self._simulation.clients
        salt = random.randrange(NUM_SALTS)
        stem = random.choice(self._stems)
        longest = self._longest if random.random() < (0.1 if self._long_answers else 0.6) else min(self._longest, 8)
        prompt = stem[: random.randint(1, longest)] + self._tokens(random.choice([0, 0, 1, 5]))
        if clients and random.random() < 0.3:  # the next turn of an earlier conversation
            client = clients[random.choice(list(clients))]
            salt = client.seed % NUM_SALTS
            prompt = client.request.inputs.prompt_token_ids + client.token_ids + self._tokens(random.randrange(3))
        sampling = SamplingParams(
            max_tokens=random.choice([30, None, None] if self._long_answers else [1, 2, 8, 30, None]),
            min_tokens=random.choice([0, 0, 5]),
            ignore_eos=random.random() < (0.7 if self._long_answers else 0.2),
            stop_token_ids=random.choice([(), (), (), (3,), (EOS, 9, 33), tuple(range(20, 32))]),
            logprobs=None if self._plain else random.choice([None, None, None, 0, 2]),
            prompt_logprobs=None if self._plain else random.choice([None] * 7 + [1]),
            top_k=0 if self._plain else random.choice([0] * 6 + [FORCED_TOP_K] * 3 + [CURSED_TOP_K]),
        )
        if (pooling := self._simulation.settings.pooling).whole and (random.random() < 0.5 or not pooling.generates):
            return [self._pooled(prompt, salt)]
        priority, prompt = random.randrange(3), prompt[: self._longest]
        adapter = "" if self._simulation.settings.adapters is None else random.choice(ADAPTERS)
        return [
            Add(
                self._name(),
                prompt,
                replace(sampling, seed=salt + NUM_SALTS * index),
                priority,
                *self._transfer(),
                adapter,
            )
            for index in range(random.choice([1, 1, 1, 2, 4]))
        ]

    def _pooled(self, prompt: list[int], salt: int) -> Add:
        """It may fill the context."""
        random, settings = self._random, self._simulation.settings
        tasks = random.choice([("last",), ("last",), ("all",), ("last", "all")])
        longest = min(settings.max_model_len, settings.max_cached_len)
        if "all" in tasks:
            longest = min(longest, settings.max_num_batched_tokens)
        if random.random() < 0.2:
            prompt = prompt + self._tokens(longest)
        return Add(self._name(), prompt[:longest], SamplingParams(seed=salt), random.randrange(3), tasks=tasks)

    def _transfer(self) -> tuple[bool, StoredBlocks | None]:
        """Whether a request is for others, and where blocks of it may be: rather of it than of another prompt."""
        random, sources = self._random, self._simulation.sources
        if not self._simulation.stores:
            return False, None
        source = random.choice(sources) if sources and random.random() < 0.7 else None
        return random.random() < 0.5, source

    def _name(self) -> str:
        self._num_made += 1
        return f"r{self._num_made}"

    def invalid(self) -> Add:
        """A request that can never be served."""
        random, sampling = self._random, SamplingParams(seed=0)
        live, pooling = list(self._simulation.live), self._simulation.settings.pooling
        requests = [
            Add(self._name(), [], sampling),
            Add(self._name(), [1] * (self._longest + 1), sampling),
            Add(self._name(), [-1], sampling),
            Add(self._name(), [1], replace(sampling, n=2)),
            Add(self._name(), [1], replace(sampling, max_tokens=-1)),
        ]
        if pooling.whole:
            requests.append(Add(self._name(), [1], sampling, tasks=("last", "none")))
            requests.append(Add(self._name(), [1] * (self._longest + 2), sampling, tasks=("last",)))
        if not pooling.generates:
            requests.append(Add(self._name(), [1], sampling))
        if live:
            requests.append(Add(random.choice(live), [1], sampling))
        return random.choice(requests)


def run_story(world: World, num_steps: int) -> Simulation:
    """Run the world's story to its end. Raises Broken."""
    random = Random(f"story of {world.name}")
    simulation = world.begin()
    try:
        for action in _story(simulation, random, num_steps):
            simulation.apply(action)
    except Exception as error:
        raise Broken(world, simulation.script, error) from error
    finally:
        simulation.close()
    return simulation


class AnyWorld(Protocol):
    """A World, or one of deployed_worlds.py."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> SchedulerSettings: ...

    @property
    def depth(self) -> int: ...

    def begin(self) -> Any:
        """A simulation, with `apply` and `close`."""
        ...


class Broken(Exception):
    """A check failed in a world. `script`: its story up to that point."""

    def __init__(self, world: AnyWorld, script: list[Any], error: Exception) -> None:
        super().__init__(f"world {world.name!r}, action {len(script)}: {type(error).__name__}: {error}")
        self.world = world
        self.script = script
        self.error = error


def _story(simulation: Simulation, random: Random, num_steps: int):
    arrivals = Arrivals(simulation, random)
    arrival_rate = random.choice([0.01, 0.04, 0.15])
    abort_rate = random.choice([0.0, 0.005, 0.05])
    invalid_rate = random.choice([0.0, 0.01])
    has_stores = simulation.stores is not None
    failure_rate = random.choice([0.01, 0.05] if has_stores else [0.0, 0.0, 0.01])  # no block is cached afterwards
    store_failure_rate = random.choice([0.0, 0.01, 0.04]) if has_stores else 0.0
    eagerness = random.choice([0.5, 0.8, 1.0])  # how often a step is planned as early as possible
    patience = random.choice([None, None, 5, 50])  # steps after which a client leaves
    while simulation.num_steps < num_steps:
        if random.random() < arrival_rate or not simulation.scheduler.has_work:
            for _ in range(random.choice([1, 1, 2, 9])):
                yield from arrivals.arrive()
        if random.random() < invalid_rate:
            yield arrivals.invalid()
        if store_failure_rate and random.random() < store_failure_rate:
            yield FailStore(random.choice(FILE_FAULTS), random.randrange(1 << 16))
        if simulation.live and random.random() < abort_rate:
            yield Abort(random.choice([*simulation.live, *simulation.held]))
        if patience:
            for request_id in [name for name, client in simulation.live.items() if client.age > patience]:
                yield Abort(request_id)
        num_plans = len(simulation.plans)
        if num_plans < simulation.depth and random.random() < eagerness:
            yield Plan()
        if len(simulation.plans) > num_plans:
            continue  # other requests may arrive and end before it is executed
        if random.random() < failure_rate:
            yield Fail(random.randrange(3), random.random() < 0.5)
        elif random.random() < 0.5:
            yield Execute()
        else:
            yield Finish()
    yield Drain()
