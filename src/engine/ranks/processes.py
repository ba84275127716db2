"""RankProcesses: the other processes that compute a model, seen from rank 0, which is the engine.

They are started before rank 0 loads its weights, or come from other nodes. When one is lost, the exchange is closed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ...config import Resolved
from ...config.exit_codes import EXIT_ENVIRONMENT, EXIT_INVALID_CONFIGURATION
from ...config.resolve.gpu import own_gpus
from ..nodes.child import RankChild, children_of_node, close_descriptors, command_of, memories_of_node
from ..nodes.fingerprint import fingerprint
from ..nodes.gathering import CannotGather, Gathering, Joined, NotGathered
from ..nodes.limits import SILENCE_S, silence_of
from ..nodes.rank_link import Start, packed
from ..nodes.ray_places import CannotUseRay
from ..nodes.ray_ranks import RayRanks
from ..nodes.ring import KEY_BYTES, connect_stages, listen
from ..nodes.secret import secret_hash
from .followers import Follower, Followers, RankLost

if TYPE_CHECKING:  # they import torch
    from ..kernels import KernelSet
    from ..memory.shared_memory import SharedMemory
    from ..parallel import Ranks
    from ..parallel.gloo import GlooRanks, Meeting
    from ..parallel.stages import StageLink
    from ..runner.loaded_model import RanksOf

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
        """Starts them, and waits for those of other nodes to connect.

        lost: called in a thread when one is lost. report: called with what this waits for.
        Raises OSError or RankLost.
        """
        from ..parallel.connect import ADDRESS

        parallel = resolved.parallel
        super().__init__(parallel.tensor_parallel_size * parallel.prefill_context_parallel_size, lost)
        self._resolved = resolved
        self._children: list[RankChild] = []
        self._memories: dict[int, SharedMemory] = {}  # of the groups whose ranks are all on this machine
        self._ranks: list[Ranks] = []  # that rank 0 exchanges with
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
        self._start_watching()

    def _start_all(self, report: Callable[[str], None]) -> None:
        from ..parallel.connect import open_store

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
        num_stages, parallel = self._resolved.num_stages, self._resolved.parallel
        rings = [_ring(num_stages) for _ in range(self._size)]
        own_ends = rings[0][0] if num_stages > 1 else None
        start = Start(self._resolved.model_dump_json(), port)
        try:
            for rank in range(1, parallel.num_ranks):
                stage, own_rank = divmod(rank, self._size)
                group = rank // parallel.tensor_parallel_size
                fds = {"memory": self._memories[group].fd} if self._memories else {}
                if rings[own_rank]:
                    fds["before"], fds["after"] = (end.fileno() for end in rings[own_rank][stage])
                environment, command = os.environ | self._gpu_of(rank), command_of(self._resolved, rank)
                child = RankChild(rank, fds, environment=environment, command=command)
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
        now, silence_s = time.monotonic(), silence_of(self._resolved.parallel, self.default_silence_s)
        for rank, each in joined.items():
            child = children.get(rank)
            name = str(child) if child is not None else f"rank {rank} of the model ({self._place(rank, each)})"
            self._followers.append(Follower(name, each.link, child, now, silence_s))
        self._introduce(gathering.address, [each.join.place for each in joined.values()])

    def _introduce(self, address: str, places: list[list[Any]]) -> None:
        """Sends the ranks where they find each other. places: of the other ranks, in order."""
        from ..parallel.connect import open_store

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
        """Those of the first group, as rank 0 sees them. Raises RuntimeError if one does not come."""
        from ..parallel.connect import own_gpu, ranks_in

        gpu = own_gpu(self._resolved)
        place = self._memories.get(0), self._meeting, 0, self._resolved.parallel
        return self._joined(ranks_in(kernels, *place, gpu=gpu))

    def prompt_ranks(self) -> GlooRanks | None:
        """Those that share prompts with rank 0; None if there are none. Raises as `ranks`."""
        from ..parallel.connect import prompt_ranks_in

        ranks = prompt_ranks_in(self._meeting, 0, self._resolved.parallel)
        return None if ranks is None else self._joined(ranks)

    @property
    def _meeting(self) -> Meeting:
        from ..parallel.connect import group_of
        from ..parallel.gloo import Meeting

        return Meeting(self._address, self._store.port, self._address, group_of(0, self._resolved))

    def _joined(self, ranks: RanksT) -> RanksT:
        self._ranks.append(ranks)
        if self._failure is not None:
            ranks.close()
        ranks.join()
        return ranks

    def agree(self, number: int) -> int:
        """The smallest of the numbers of all ranks. To be called once, as they do. Raises RankLost."""
        from ..parallel.agreement import smallest_of
        from ..parallel.connect import start_limit_s
        from ..parallel.gloo import Meeting

        parallel = self._resolved.parallel
        meeting = Meeting(self._address, self._store.port, self._address)
        return smallest_of(meeting, 0, parallel.num_ranks, start_limit_s(parallel), self.check)(number)

    @property
    def ranks_of(self) -> RanksOf | None:
        """Makes the ranks of the first group; None if rank 0 is its only one."""
        return self.ranks if self._resolved.parallel.tensor_parallel_size > 1 else None

    def stage_link(self) -> StageLink:
        """To the next stage, and from the last one. To be called once. Raises RankLost or OSError."""
        from ..parallel.connect import stage_link

        assert self._stage_ends is not None
        ends = self._stage_ends()
        with self._changed:
            self._open_ends = ends
        self.check()
        self._stage_link = stage_link(self._resolved, *ends)
        return self._stage_link

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
        """As Followers. Releases what was used to reach them."""
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
