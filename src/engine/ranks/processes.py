"""RankProcesses: the other processes that compute a model, seen from rank 0, which is the engine.

They begin before rank 0 loads its weights, in one of three ways:

    on this machine      rank 0 starts them, and they inherit their connections to each other   _start_here
    on several nodes     rank 0 starts those of its node, the other nodes start theirs          _start_on_nodes
    in actors of Ray     Ray starts them                                                        _start_on_ray

In the last two ways all of them connect to rank 0, which then sends them where they find each other (`_introduce`).
When one is lost, the exchanges are closed, so that no process waits for it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ...config import DeploymentError, Resolved
from ...config.exit_codes import EXIT_ENVIRONMENT, EXIT_INVALID_CONFIGURATION
from ...config.resolve.gpu import own_gpus
from ..cluster.child import RankChild, children_of_node, close_descriptors, command_of, memories_of_node
from ..cluster.fingerprint import fingerprint
from ..cluster.gathering import CannotGather, Gathering, Joined, NotGathered
from ..cluster.limits import SILENCE_S, silence_of
from ..cluster.ray_places import CannotUseRay
from ..cluster.ray_ranks import RayRanks
from ..cluster.ring import KEY_BYTES, connect_stages, listen
from ..cluster.secret import secret_hash
from ..transport.rank_link import packed
from ..transport.rank_messages import Start
from .followers import Follower, Followers, RankLost
from .group_runner import LeadingGroup

if TYPE_CHECKING:  # they import torch
    from ..collectives import Ranks
    from ..collectives.gloo import GlooRanks, Meeting
    from ..collectives.stages import StageLink
    from ..host.shared_memory import SharedMemory
    from ..kernels import KernelSet
    from ..runner.loaded_model import RanksOf
    from ..worker import WorkerCall, Workplace

RanksT = TypeVar("RanksT", bound="Ranks")
logger = logging.getLogger(__name__)


class RankProcesses(Followers):
    default_silence_s = SILENCE_S  # of a rank of another node that has its weights
    ends_when_refused = False

    def __init__(
        self,
        resolved: Resolved,
        lost: Callable[[], None] = lambda: None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Starts the ranks, and waits for ranks of other nodes to connect.

        lost: called in a thread when one is lost. report: called with what this waits for.
        Raises OSError or RankLost.
        """
        from ..collectives.connect import ADDRESS

        super().__init__(resolved.topology.stage_size, lost)
        self._resolved = resolved
        self._children: list[RankChild] = []
        self._memories: dict[int, SharedMemory] = {}  # of the groups whose ranks are all on this machine
        self._ranks: list[Ranks] = []  # that rank 0 exchanges with
        # Makes the connections from the last stage and to the next one; None if there is one stage.
        self._stage_ends: Callable[[], tuple[socket.socket, socket.socket]] | None = None
        self._open_ends: tuple[socket.socket, ...] = ()  # those connections, once they exist
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
        self._start_watching()

    def _start_all(self, report: Callable[[str], None]) -> None:
        from ..collectives.connect import open_store

        self._memories = memories_of_node(self._resolved, 0)
        if self._resolved.topology.backend == "ray":
            self._start_on_ray(report)
        elif self._resolved.topology.num_nodes > 1:
            self._start_on_nodes(report)
        else:
            self._store, port = open_store(self._address)
            self._start_here(port)

    def _start_here(self, port: int) -> None:
        """Start all ranks on this machine. They inherit connections to each other."""
        topology = self._resolved.topology
        rings = [_ring(topology.num_stages) for _ in range(self._size)]  # by the place of a rank in its stage
        own_ends = rings[0][0] if rings[0] else None
        start = Start(self._resolved.model_dump_json(), port)
        try:
            for rank in range(1, topology.num_ranks):
                child = self._child(rank, rings)
                self._children.append(child)
                self._followers.append(Follower(str(child), child.link, child))
                child.link.send(start)
        finally:
            for end in itertools.chain.from_iterable(itertools.chain.from_iterable(rings)):
                if own_ends is None or end not in own_ends:
                    end.close()
        if own_ends is not None:
            ends = own_ends
            self._open_ends, self._stage_ends = ends, lambda: ends

    def _child(self, rank: int, rings: list[list[tuple[socket.socket, socket.socket]]]) -> RankChild:
        stage, place = divmod(rank, self._size)
        fds: dict[str, int] = {}
        if self._memories:
            fds["memory"] = self._memories[self._resolved.topology.group_of(rank)].fd
        if rings[place]:
            before, after = rings[place][stage]
            fds |= {"before": before.fileno(), "after": after.fileno()}
        environment, command = os.environ | self._gpu_of(rank), command_of(self._resolved, rank)
        return RankChild(rank, fds, environment=environment, command=command)

    def _gpu_of(self, rank: int) -> dict[str, str]:
        """Variables that give a rank its own GPU; rank 0 has the first one."""
        return own_gpus(rank) if self._resolved.uses_gpus else {}

    def _start_on_nodes(self, report: Callable[[str], None]) -> None:
        """Start the ranks of this node; other nodes start theirs."""
        topology = self._resolved.topology
        if topology.node:
            raise RankLost("another node than 0 only runs `engine up`", EXIT_INVALID_CONFIGURATION)

        def start(_: Gathering) -> None:
            self._children = children_of_node(self._resolved, 0, self._memories)

        self._gather(*topology.leader, secret_hash(), start, report)

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
        others = range(1, self._resolved.topology.num_ranks)
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
        self._follow(joined)
        self._introduce(gathering.address, [each.join.place for each in joined.values()])

    def _follow(self, joined: Mapping[int, Joined]) -> None:
        """joined: the ranks that have connected, some of which were started here."""
        children = {child.rank: child for child in self._children}
        now, silence_s = time.monotonic(), silence_of(self._resolved.parallel, self.default_silence_s)
        for rank, each in joined.items():
            child = children.get(rank)
            name = str(child) if child is not None else f"rank {rank} of the model ({self._place(rank, each)})"
            self._followers.append(Follower(name, each.link, child, now, silence_s))

    def _introduce(self, address: str, places: list[list[Any]]) -> None:
        """Sends the ranks where they find each other. places: of the other ranks, in order."""
        from ..collectives.connect import open_store

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
        return f"{self._home(rank)}, {joined.join.host}, process {joined.join.pid}"

    def _names(self, ranks: list[int]) -> str:
        names = (f"rank {rank} of {self._home(rank)}" for rank in ranks)
        return "waiting for " + ", ".join(names)

    def _home(self, rank: int) -> str:
        return "Ray" if self._on_ray is not None else f"node {self._resolved.topology.node_of(rank)}"

    def _check_starts(self) -> None:
        """Raises RankLost if one that was started here has ended."""
        for child in self._children:
            if child.process.poll() is not None:
                raise RankLost(f"{child} {child.end()}")
        if self._on_ray is not None and (ended := self._on_ray.ended()):
            raise RankLost(ended)

    def ranks(self, kernels: KernelSet) -> Ranks:
        """The ranks of the first group, as rank 0 sees them. Raises RuntimeError if one does not come."""
        from ..collectives.connect import own_gpu, ranks_in

        gpu = own_gpu(self._resolved)
        place = self._memories.get(0), self._meeting, 0, self._resolved.parallel
        return self._joined(ranks_in(kernels, *place, gpu=gpu))

    def prompt_ranks(self) -> GlooRanks | None:
        """The ranks that share prompts with rank 0; None if there are none. Raises what `ranks` raises."""
        from ..collectives.connect import prompt_ranks_in

        ranks = prompt_ranks_in(self._meeting, 0, self._resolved.parallel)
        return None if ranks is None else self._joined(ranks)

    @property
    def _meeting(self) -> Meeting:
        from ..collectives.connect import group_of
        from ..collectives.gloo import Meeting

        return Meeting(self._address, self._store.port, self._address, group_of(0, self._resolved))

    def _joined(self, ranks: RanksT) -> RanksT:
        self._ranks.append(ranks)
        if self._failure is not None:
            ranks.close()
        ranks.join()
        return ranks

    def agree(self, number: int) -> int:
        """The smallest of the numbers of all ranks. To be called once, as they do. Raises RankLost."""
        from ..collectives.agreement import smallest_of
        from ..collectives.connect import start_limit_s
        from ..collectives.gloo import Meeting

        num_ranks, limit_s = self._resolved.topology.num_ranks, start_limit_s(self._resolved.parallel)
        meeting = Meeting(self._address, self._store.port, self._address)
        return smallest_of(meeting, 0, num_ranks, limit_s, self.check)(number)

    @property
    def ranks_of(self) -> RanksOf | None:
        """Makes the ranks of the first group; None if rank 0 is its only one."""
        return self.ranks if self._resolved.topology.group_size > 1 else None

    def stage_link(self) -> StageLink:
        """The link to the next stage, and from the last one. Call it once. Raises RankLost or OSError."""
        from ..collectives.connect import stage_link

        assert self._stage_ends is not None
        ends = self._stage_ends()
        with self._changed:
            self._open_ends = ends
        self.check()
        self._stage_link = stage_link(self._resolved, *ends)
        return self._stage_link

    def group(self, *, has_stages: bool) -> LeadingGroup:
        """What rank 0 and these say to each other about a step. has_stages: see LeadingGroup."""
        return LeadingGroup(self, has_stages=has_stages)

    def caller(self, workplace: Workplace) -> WorkerCall:
        """Calls a method of the workers of all ranks. workplace: of rank 0."""
        from .worker_calls import LeadingCalls

        return LeadingCalls(workplace, self).call

    def cannot_start(self, error: BaseException) -> None:
        """The start of rank 0 has failed: close the ranks. Raises the reason if one of them has caused the failure."""
        self.close()
        if not isinstance(error, DeploymentError):
            self.check()

    def _interrupt(self) -> None:
        with self._changed:
            ends = self._open_ends
        for memory in self._memories.values():
            memory.close_exchange()
        for ranks in self._ranks:
            ranks.close()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """See Followers.close. Also releases what was used to reach the ranks."""
        self._is_closed = True
        for ranks in self._ranks:
            ranks.close()
        super().close()
        if self._stage_link is not None:
            self._stage_link.close()
        for end in self._open_ends:
            end.close()
        for child in self._children:
            child.close()
        if self._on_ray is not None:
            self._on_ray.close()


def _ring(num_stages: int) -> list[tuple[socket.socket, socket.socket]]:
    """Connections of each stage: from the one before, to the next one. None of a single stage."""
    if num_stages == 1:
        return []
    pairs = [socket.socketpair() for _ in range(num_stages)]  # from each stage to the next
    return [(pairs[stage - 1][1], pairs[stage][0]) for stage in range(num_stages)]
