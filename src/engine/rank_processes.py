"""RankProcesses: the other processes that compute a model, seen from rank 0, which is the engine.

They are started before rank 0 loads its weights, or come from other nodes. A thread watches them: when one ends, stops,
falls silent or fails, the exchange is closed, so that a step that waits for it fails at once; the others are ended, and
the engine ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..config import Resolved
from ..config.exit_codes import EXIT_ENVIRONMENT, EXIT_FAILED, EXIT_INVALID_CONFIGURATION
from ..config.resolve.gpu import own_gpus
from .api import EngineInfo, StepLaunches
from .core import StepPlan, StepResult
from .nodes.child import RankChild, children_of_node, close_descriptors, memories_of_node
from .nodes.fingerprint import fingerprint
from .nodes.gathering import CannotGather, Gathering, Joined, NotGathered
from .nodes.limits import ALIVE_S, LOADING_SILENCE_S, SILENCE_S
from .nodes.ray_ranks import CannotUseRay, RayRanks
from .nodes.ring import KEY_BYTES, connect_stages, listen
from .nodes.secret import secret_hash
from .rank_link import Alive, Failed, Finish, FreeMemory, Loaded, RankLink, RankMessage, Returned, Start, Tokens, packed
from .step_queue import RunnerUnusable

if TYPE_CHECKING:  # they import torch
    import torch

    from .core.step_plan import Int32
    from .kernels import KernelSet
    from .kernels.exchange import SharedMemory
    from .parallel import Ranks
    from .parallel.stages import StageLink
    from .runner.loaded_model import RanksOf
    from .runner.model_runner import ModelRunner
    from .runner.stages import FirstStageRunner
    from .sampling.sampler import Int64, Sampled, Sampler
    from .sampling.sampling_table import Slots

_POLL_S = 0.25  # of the thread that watches; a process that is stopped in two polls one after the other is given up
logger = logging.getLogger(__name__)


class RankLost(RunnerUnusable):
    """A process of the model has ended: no step can follow."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(slots=True)
class Follower:
    name: str
    link: RankLink
    child: RankChild | None  # if it runs on this machine
    heard_at: float | None = None  # of links over a network
    silence_s: float = SILENCE_S
    is_loaded: bool = False
    has_left: bool = False  # without a failure
    begun: int = 0  # operations, where it plans its own steps
    returned: Returned | None = None  # of the call that is being made

    def __str__(self) -> str:
        return self.name

    def trouble(self, now: float) -> str:
        """Why it is given up; empty if it is not."""
        if self.child is not None and self.child.is_stopped():
            return "is stopped"
        limit_s = self.silence_s if self.is_loaded else LOADING_SILENCE_S
        if self.heard_at is not None and now - self.heard_at > limit_s:
            return f"has not answered for {limit_s:g} s"
        return ""

    def end(self) -> str:
        return "has closed its connection; its log says why" if self.child is None else self.child.end()

    def give_up(self) -> None:
        if self.child is not None:
            self.child.kill()
        self.link.shut_down()


class RankProcesses:
    silence_s = SILENCE_S  # of a rank of another node that has its weights
    ends_when_refused = False

    def __init__(
        self,
        resolved: Resolved,
        lost: Callable[[], None] = lambda: None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Starts them, and waits for those of other nodes to connect.

        lost: called in a thread when one is lost. report: called with what this waits for.
        Raises OSError or RankLost.
        """
        from .parallel.connect import ADDRESS

        self._resolved, self._lost = resolved, lost
        self._size = resolved.parallel.tensor_parallel_size
        self._changed = threading.Condition()
        self._failure: RankLost | None = None
        self._is_closed = False
        self._followers: list[Follower] = []
        self._children: list[RankChild] = []
        self._memories: dict[int, SharedMemory] = {}  # of the stages whose ranks are all on this machine
        self._ranks: Ranks | None = None
        self._stage_ends: Callable[[], tuple[socket.socket, socket.socket]] | None = None
        self._open_ends: tuple[socket.socket, ...] = ()
        self._stage_link: StageLink | None = None
        self._address = ADDRESS
        self._on_ray: RayRanks | None = None
        try:
            self._start_all(report)
        except BaseException:
            self.close()
            raise
        finally:
            close_descriptors(self._memories)
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def _start_all(self, report: Callable[[str], None]) -> None:
        from .parallel.connect import open_store

        self._memories = memories_of_node(self._resolved, 0)
        if self._resolved.parallel.distributed_executor_backend == "ray":
            self._start_on_ray(report)
        elif self._resolved.parallel.nnodes > 1:
            self._start_on_nodes(report)
        else:
            self._store, port = open_store(self._address)
            self._start(port)

    def _start(self, port: int) -> None:
        """All ranks, on this machine. They inherit connections to each other."""
        num_stages = self._resolved.num_stages
        rings = [_ring(num_stages) for _ in range(self._size)]
        own_ends = rings[0][0] if num_stages > 1 else None
        start = Start(self._resolved.model_dump_json(), port)
        try:
            for rank in range(1, self._resolved.parallel.num_ranks):
                stage, own_rank = divmod(rank, self._size)
                fds = {"memory": self._memories[stage].fd} if self._memories else {}
                if rings[own_rank]:
                    fds["before"], fds["after"] = (end.fileno() for end in rings[own_rank][stage])
                child = RankChild(rank, fds, environment=os.environ | self._gpu_of(rank))
                self._children.append(child)
                self._followers.append(Follower(str(child), child.link, child))
                child.link.send(start)
        finally:
            for end in (end for ring in rings for ends in ring for end in ends):
                if own_ends is None or end not in own_ends:
                    end.close()
        if own_ends is not None:
            ends = own_ends
            self._open_ends, self._stage_ends = ends, lambda: ends

    def _gpu_of(self, rank: int) -> dict[str, str]:
        """Variables that give a rank a GPU of its own; rank 0 has the first one."""
        return own_gpus(rank) if self._resolved.uses_gpus else {}

    def _start_on_nodes(self, report: Callable[[str], None]) -> None:
        """Those of this node; other nodes start theirs."""
        parallel = self._resolved.parallel
        if parallel.node_rank:
            raise RankLost("another node than 0 only runs `engine up`", EXIT_INVALID_CONFIGURATION)

        def start(_: Gathering) -> None:
            self._children = children_of_node(self._resolved, 0, self._memories)

        self._gather(parallel.master_addr, parallel.master_port, secret_hash(), start, report)

    def _start_on_ray(self, report: Callable[[str], None]) -> None:
        try:
            on_ray = self._on_ray = RayRanks(self._resolved, report)
        except CannotUseRay as error:
            raise RankLost(str(error), EXIT_ENVIRONMENT) from None
        self._gather(on_ray.address, 0, on_ray.secret_hash, lambda gathering: on_ray.start(gathering.port), report)

    def _gather(
        self,
        address: str,
        port: int,
        secret: str,
        start: Callable[[Gathering], None],
        report: Callable[[str], None],
    ) -> None:
        """Waits for all ranks to connect to this one over TCP. start: starts those that are to be started here."""
        others = range(1, self._resolved.parallel.num_ranks)
        try:
            prints, ends = fingerprint(self._resolved), self.ends_when_refused
            with Gathering(address, port, others, prints, secret, ends_when_refused=ends) as gathering:
                start(gathering)
                waits = f"at {gathering.address}:{gathering.port}"
                joined = gathering.wait(self._check_starts, lambda missing: report(f"{self._names(missing)} {waits}"))
        except CannotGather as error:
            raise RankLost(str(error), EXIT_ENVIRONMENT) from None
        except NotGathered as error:
            raise RankLost(str(error)) from None
        children = {child.rank: child for child in self._children}
        now = time.monotonic()
        for rank, each in joined.items():
            child = children.get(rank)
            name = str(child) if child is not None else f"rank {rank} of the model ({self._place(rank, each)})"
            self._followers.append(Follower(name, each.link, child, now, self.silence_s))
        self._introduce(gathering.address, [each.join.place for each in joined.values()])

    def _introduce(self, address: str, places: list[list[Any]]) -> None:
        """Sends the ranks where they find each other. places: of the other ranks, in order."""
        from .parallel.connect import open_store

        self._address = address
        self._store, port = open_store(address)
        key = os.urandom(KEY_BYTES)
        if self._resolved.num_stages > 1:
            listener, own = listen(address)
            places = [own, *places]
            self._stage_ends = lambda: connect_stages(listener, key, places, 0, self._size, self.check)
        start = packed(Start(self._resolved.model_dump_json(), port, key, places))
        for follower in self._followers:
            with contextlib.suppress(OSError):  # the thread that watches sees it
                follower.link.send_bytes(start)

    def _place(self, rank: int, joined: Joined) -> str:
        node = "Ray" if self._on_ray is not None else f"node {self._resolved.parallel.node_of(rank)}"
        return f"{node}, {joined.join.host}, process {joined.join.pid}"

    def _names(self, ranks: list[int]) -> str:
        node_of, on_ray = self._resolved.parallel.node_of, self._on_ray is not None
        names = (f"rank {rank} of {'Ray' if on_ray else f'node {node_of(rank)}'}" for rank in ranks)
        return "waiting for " + ", ".join(names)

    def _check_starts(self) -> None:
        """Raises RankLost if one that was started here has ended."""
        for child in self._children:
            if child.process.poll() is not None:
                raise RankLost(f"{child} {child.end()}")
        if self._on_ray is not None and (ended := self._on_ray.ended()):
            raise RankLost(ended)

    def ranks(self, kernels: KernelSet) -> Ranks:
        """Those of the first stage, as rank 0 sees them. Raises RuntimeError if one does not come."""
        from .parallel.connect import group_of, own_gpu, ranks_in
        from .parallel.gloo import Meeting

        port = self._store.port
        meeting = Meeting(self._address, port, self._address, group_of(0, self._resolved))
        uses_gloo = self._resolved.parallel.disable_custom_all_reduce
        how: dict[str, Any] = {"uses_gloo": uses_gloo, "gpu": own_gpu(self._resolved)}
        self._ranks = ranks_in(kernels, self._memories.get(0), meeting, 0, self._size, **how)
        if self._failure is not None:
            self._ranks.close()
        self._ranks.join()
        return self._ranks

    def agree(self, number: int) -> int:
        """The smallest of the numbers of all ranks. To be called once, as they do. Raises RankLost."""
        from .parallel.agreement import smallest_of
        from .parallel.connect import LIMIT_S
        from .parallel.gloo import Meeting

        meeting = Meeting(self._address, self._store.port, self._address)
        return smallest_of(meeting, 0, self._resolved.parallel.num_ranks, LIMIT_S, self.check)(number)

    @property
    def ranks_of(self) -> RanksOf | None:
        """Makes the ranks of the first stage; None if rank 0 is its only one."""
        return self.ranks if self._size > 1 else None

    def stage_link(self) -> StageLink:
        """To the next stage, and from the last one. To be called once. Raises RankLost or OSError."""
        from .parallel.connect import stage_link

        assert self._stage_ends is not None
        ends = self._stage_ends()
        with self._changed:
            self._open_ends = ends
        self.check()
        self._stage_link = stage_link(self._resolved, *ends)
        return self._stage_link

    def wait_loaded(self) -> None:
        """Waits until all have their weights. Raises RankLost."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or all(each.is_loaded for each in self._followers))
        self.check()

    def check(self) -> None:
        """Raises RankLost if a process has ended."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Ends them; those of other nodes wait for the next start then."""
        self._is_closed = True
        if self._ranks is not None:
            self._ranks.close()
        for each in self._followers:
            each.give_up()
            each.link.close()
        if self._stage_link is not None:
            self._stage_link.close()
        for end in self._open_ends:
            end.close()
        for child in self._children:
            child.close()
        if self._on_ray is not None:
            self._on_ray.close()

    def send(self, message: RankMessage) -> None:
        """What is sampled to the ranks of the first stage, other messages to all. Raises RankLost."""
        data = packed(message)
        try:
            for each in self._followers[: self._size - 1] if isinstance(message, Finish | Tokens) else self._followers:
                each.link.send_bytes(data)
        except OSError:
            self.wait_failure()
            self.check()
            raise

    def expect_returned(self) -> None:
        """A call begins: what was returned before is not of it."""
        with self._changed:
            for each in self._followers:
                each.returned = None

    def take_returned(self) -> list[Returned]:
        """What the worker of each has returned, by rank. Waits for them. Raises RankLost."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or all(each.returned for each in self._followers))
            self.check()
            return [each.returned for each in self._followers if each.returned is not None]

    def lose(self, reason: str, exit_code: int = EXIT_FAILED) -> None:
        """No step can follow. The first reason counts."""
        with self._changed:
            if self._failure is not None or self._is_closed:
                return
            self._failure = RankLost(reason, exit_code)
            self._changed.notify_all()
            ends = self._open_ends
        for memory in self._memories.values():
            memory.close_exchange()
        if self._ranks is not None:
            self._ranks.close()
        for each in self._followers:
            each.give_up()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._lost()

    def wait_failure(self) -> None:
        """Gives the thread that watches the time to see why an exchange has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None, 4 * _POLL_S)

    def _watch(self) -> None:
        poller = select.poll()
        by_fd = {each.link.fileno(): each for each in self._followers}
        for fd in by_fd:
            poller.register(fd, select.POLLIN)
        looked_at = 0.0
        while self._failure is None and not self._is_closed:
            for fd, _ in poller.poll(_POLL_S * 1000):
                self._take(by_fd[fd])
                if by_fd[fd].has_left:
                    poller.unregister(fd)
            now = time.monotonic()
            if now - looked_at >= _POLL_S:
                looked_at = now
                self._look(now)

    def _look(self, now: float) -> None:
        sends = int(now / ALIVE_S) != int((now - _POLL_S) / ALIVE_S)
        for each in self._followers:
            if each.has_left:
                continue
            if trouble := each.trouble(now):
                self.lose(f"{each} {trouble}")
            elif sends and each.heard_at is not None:
                try:
                    each.link.offer(self._alive())
                except OSError:
                    self.lose(f"{each} {each.end()}")

    def _take(self, follower: Follower) -> None:
        try:
            message = follower.link.receive_part()  # the others are heard while a long message arrives
        except (EOFError, OSError):
            self.lose(f"{follower} {follower.end()}")
            return
        if follower.heard_at is not None:
            follower.heard_at = time.monotonic()
        if message is not None:
            self._handle(follower, message)

    def _alive(self) -> Alive:
        return Alive()

    def _handle(self, follower: Follower, message: RankMessage) -> None:
        match message:
            case Loaded():
                with self._changed:
                    follower.is_loaded = True
                    self._changed.notify_all()
            case Returned():
                with self._changed:
                    follower.returned = message
                    self._changed.notify_all()
            case Failed(text, exit_code):
                self.lose(f"{follower} failed: {text}", exit_code)


@contextlib.contextmanager
def in_step(others: RankProcesses, what: str = "a step") -> Iterator[None]:
    """What rank 0 does of a step, or of a call. Raises RankLost if neither this step nor a later one can be computed,
    else what sampling raises."""
    others.check()
    try:
        yield
    except ReportedFailure as failed:
        raise failed.error from None
    except BaseException as error:
        try:  # a second interrupt may end the waiting
            others.wait_failure()
            others.check()
        finally:
            others.lose(f"{what} ended in the middle: {type(error).__name__}: {error}")  # the first reason counts
        raise


class LeadingRunner:
    """Executes steps together with the other ranks."""

    def __init__(self, runner: ModelRunner, others: RankProcesses) -> None:
        """runner: of rank 0, with a LeadingSampler."""
        self._runner, self._others = runner, others

    def execute(self, plan: StepPlan) -> StepResult:
        """Raises as `in_step`."""
        with in_step(self._others):
            self._announce(plan)
            return self._runner.execute(plan)

    def _announce(self, plan: StepPlan) -> None:
        """The others begin the step too."""
        self._others.send(plan)

    def warm_up(self) -> None:
        self._runner.warm_up(self.execute)

    def free_cache(self) -> None:
        """Of all ranks."""
        self._others.send(FreeMemory())
        self._runner.free_cache()

    def info(self) -> EngineInfo:
        return self._runner.info()

    def launches(self) -> StepLaunches:
        return self._runner.launches()


class LeadingStageRunner(LeadingRunner):
    """Begins and finishes the steps of a pipeline together with the other ranks."""

    def __init__(self, runner: FirstStageRunner, others: RankProcesses) -> None:
        super().__init__(runner, others)
        self._stage = runner

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        """The first stage of a step. Returns a function that waits for the others, and samples. Raises as `execute`."""
        with in_step(self._others):
            self._announce(plan)
            begun = self._stage.begin(plan)

        def finish() -> StepResult:
            with in_step(self._others):
                self._others.send(Finish())
                return self._stage.finish(begun)

        return finish

    def execute(self, plan: StepPlan) -> StepResult:
        """As LeadingRunner."""
        return self.launch(plan)()


class ReportedFailure(Exception):
    """Sampling has failed, and the other ranks know it: they are ready for the next step."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class LeadingSampler:
    """The sampler of rank 0, which sends the others what it has sampled."""

    def __init__(self, sampler: Sampler, others: RankProcesses) -> None:
        self._sampler, self._others = sampler, others
        self.prompt_logprobs = sampler.prompt_logprobs

    def sample(self, logits: torch.Tensor, slots: Slots, lengths: Int64, token_table: Int32) -> Sampled:
        """As Sampler. Raises ReportedFailure."""
        try:
            sampled = self._sampler.sample(logits, slots, lengths, token_table)
        except Exception as error:
            self._others.send(Tokens(None))
            raise ReportedFailure(error) from error
        self._others.send(Tokens(sampled.token_ids))
        return sampled


def _ring(num_stages: int) -> list[tuple[socket.socket, socket.socket]]:
    """Connections of each stage: from the one before, to the next one. None of a single stage."""
    if num_stages == 1:
        return []
    pairs = [socket.socketpair() for _ in range(num_stages)]  # from each stage to the next
    return [(pairs[stage - 1][1], pairs[stage][0]) for stage in range(num_stages)]
