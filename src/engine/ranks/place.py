"""Place: what a rank other than 0 has before it loads its part of the model, and how it gets it over the network."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...config import Resolved
from ..memory.shared_memory import SharedMemory
from ..nodes.fingerprint import fingerprint
from ..nodes.joining import JoinedLink, LinkOf, join
from ..nodes.limits import silence_of
from ..nodes.rank_link import Join, RankLink
from ..nodes.ring import connect_stages, listen
from ..nodes.secret import secret_hash
from ..parallel.agreement import smallest_of
from ..parallel.connect import group_of, own_gpu, prompt_ranks_in, ranks_in, start_limit_s, wait_for_all
from ..parallel.gloo import GlooRanks, Meeting
from ..runner.loaded_model import RanksOf
from ..runner.rank_loading import RankLoading, rank_loading


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
        return self.resolved.parallel.stage_of(self.rank)

    @property
    def ranks_of(self) -> RanksOf | None:
        """Joins the ranks of its stage; None if it is the only one."""
        parallel = self.resolved.parallel
        size = parallel.tensor_parallel_size
        if size == 1:
            return None
        place = (self.memory, self.meeting, self.rank % size, parallel)
        gpu = own_gpu(self.resolved)
        return lambda kernels: wait_for_all(ranks_in(kernels, *place, gpu=gpu))

    @property
    def loading(self) -> RankLoading:
        """Of its part of the model."""
        parallel = self.resolved.parallel
        agree = smallest_of(self.meeting, self.rank, parallel.num_ranks, start_limit_s(parallel))
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
        secret: the hash of the secret; None for that of the environment.
        link_of: makes the link to rank 0; None for a JoinedLink.

    Raises JoinRefused or OSError.
    """
    parallel = resolved.parallel
    by_default = partial(JoinedLink, silence_s=silence_of(parallel))
    listeners: list[socket.socket] = []
    parts = fingerprint(resolved)

    def join_of(own_address: str) -> Join:
        place: list[Any] = []
        if resolved.num_stages > 1:
            listener, place = listen(own_address)
            listeners.append(listener)  # of earlier attempts too, which are closed with this process
        hash_of_secret = secret_hash() if secret is None else secret
        return Join(rank, socket.gethostname(), os.getpid(), place, parts, hash_of_secret)

    link, start = join(parallel.master_addr, parallel.master_port, join_of, link_of=link_of or by_default)
    decided = with_files_of(Resolved.model_validate_json(start.resolved), resolved)
    meeting = Meeting(link.address, start.port, link.own_address, group_of(rank, resolved))
    size, stages = parallel.tensor_parallel_size, None
    if resolved.num_stages > 1:
        stages = connect_stages(listeners[-1], start.key, start.places, rank, size)
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
