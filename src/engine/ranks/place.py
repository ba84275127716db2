"""Place: what a rank other than 0 has before it loads its part of the model, and how it gets it over the network."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...config import Resolved
from ..cluster.fingerprint import fingerprint
from ..cluster.joining import JoinedLink, LinkOf, join
from ..cluster.limits import silence_of
from ..cluster.ring import connect_stages, listen
from ..cluster.secret import secret_hash
from ..collectives.agreement import smallest_of
from ..collectives.connect import group_of, own_gpu, prompt_ranks_in, ranks_in, start_limit_s, wait_for_all
from ..collectives.gloo import GlooRanks, Meeting
from ..host.shared_memory import SharedMemory
from ..runner.loaded_model import RanksOf
from ..runner.rank_loading import RankLoading, rank_loading
from ..transport.rank_link import RankLink
from ..transport.rank_messages import Join


@dataclass(frozen=True, slots=True)
class Place:
    """What a rank has, before it loads."""

    rank: int
    resolved: Resolved
    link: RankLink  # to rank 0
    memory: SharedMemory | None  # with the other ranks of its stage
    meeting: Meeting  # of these
    stages: tuple[socket.socket, socket.socket] | None  # connections to the stages before and after

    @property
    def stage(self) -> int:
        return self.resolved.topology.stage_of(self.rank)

    @property
    def ranks_of(self) -> RanksOf | None:
        """Joins the ranks of its stage; None if it is the only one."""
        topology = self.resolved.topology
        if topology.group_size == 1:
            return None
        place = (self.memory, self.meeting, topology.rank_in_group(self.rank), self.resolved.parallel)
        gpu = own_gpu(self.resolved)
        return lambda kernels: wait_for_all(ranks_in(kernels, *place, gpu=gpu))

    @property
    def loading(self) -> RankLoading:
        """How this rank loads its part of the model."""
        num_ranks, limit_s = self.resolved.topology.num_ranks, start_limit_s(self.resolved.parallel)
        agree = smallest_of(self.meeting, self.rank, num_ranks, limit_s)
        return rank_loading(self.resolved, self.ranks_of, agree, self._prompt_ranks)

    def _prompt_ranks(self) -> GlooRanks | None:
        """Joins them; None if no other rank computes tokens of the same prompts."""
        ranks = prompt_ranks_in(self.meeting, self.rank, self.resolved.parallel)
        return None if ranks is None else wait_for_all(ranks)


def joined(
    resolved: Resolved,
    rank: int,
    memory: SharedMemory | None,
    secret: str | None = None,
    link_of: LinkOf | None = None,
) -> Place:
    """Connects a rank to rank 0, and to the stages next to it.

    Args:
        resolved: as decided here.
        secret: the hash of the secret; None takes it from the environment.
        link_of: makes the link to rank 0; None for a JoinedLink.

    Raises JoinRefused or OSError.
    """
    topology = resolved.topology
    by_default = partial(JoinedLink, silence_s=silence_of(resolved.parallel))
    listeners: list[socket.socket] = []
    parts = fingerprint(resolved)

    def join_of(own_address: str) -> Join:
        place: list[Any] = []
        if topology.num_stages > 1:
            listener, place = listen(own_address)
            listeners.append(listener)  # of earlier attempts too, which are closed with this process
        hash_of_secret = secret_hash() if secret is None else secret
        return Join(rank, socket.gethostname(), parts, hash_of_secret, os.getpid(), place)

    link, start = join(*topology.leader, join_of, link_of=link_of or by_default)
    decided = with_files_of(Resolved.model_validate_json(start.resolved), resolved)
    meeting = Meeting(link.address, start.port, link.own_address, group_of(rank, resolved))
    stages = None
    if topology.num_stages > 1:
        stages = connect_stages(listeners[-1], start.key, start.places, rank, topology.group_size)
    return Place(rank, decided, link, memory, meeting, stages)


def with_files_of(decided: Resolved, own: Resolved) -> Resolved:
    """The values of node 0, with the files, the machine, the threads and the NUMA nodes of this one."""
    names = ("model_files", "model_path", "machine", "server", "observability")
    own_parts: dict[str, Any] = {name: getattr(own, name) for name in names}
    paths = ("model", "tokenizer", "hf_config_path", "download_dir")
    model = {name: getattr(own.model, name) for name in paths if name in type(own.model).model_fields}
    own_parts["model"] = decided.model.model_copy(update=model)
    places = ("num_threads", "numa_bind", "numa_bind_nodes", "numa_bind_cpus")
    device = {name: getattr(own.device, name) for name in places}
    own_parts["device"] = decided.device.model_copy(update=device)
    return decided.model_copy(update=own_parts)
