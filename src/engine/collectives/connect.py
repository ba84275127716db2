"""How the processes of a model exchange: as ranks of a stage, and between stages."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TypeVar

import torch

from ...config import Resolved
from ...config.schema.parallel import ParallelConfig
from ..host.shared_memory import SharedMemory
from ..kernels import KernelSet
from .gloo import GlooRanks, Meeting, open_store
from .group import Ranks
from .nccl import NcclRanks
from .shared_memory import SharedMemoryRanks
from .stages import StageLink

__all__ = [
    "group_of",
    "open_store",
    "own_gpu",
    "prompt_ranks_in",
    "ranks_in",
    "stage_link",
    "start_limit_s",
    "wait_for_all",
]

RanksT = TypeVar("RanksT", bound=Ranks)
ADDRESS, LIMIT_S = "127.0.0.1", 600.0


def start_limit_s(parallel: ParallelConfig) -> float:
    """Seconds for all ranks to come, no fewer than by default: they may compile kernels before."""
    return max(LIMIT_S, parallel.cpu_distributed_timeout_seconds or 0)


def group_of(rank: int, resolved: Resolved) -> str:
    """The name of the ranks that have the parts of the same weights, where they meet."""
    return f"group {resolved.topology.group_of(rank)}"


def own_gpu(resolved: Resolved) -> torch.device | None:
    """GPU of this process; None if the model is computed on CPUs, or its kernels are interpreted there."""
    return torch.device("cuda", 0) if resolved.uses_gpus else None


def ranks_in(
    kernels: KernelSet,
    memory: SharedMemory | None,
    meeting: Meeting,
    rank: int,
    parallel: ParallelConfig,
    *,
    gpu: torch.device | None = None,
) -> Ranks:
    """The ranks of a stage, as rank `rank` of it sees them: through NCCL if each has a GPU, else through shared memory
    if they have one and the kernels can. Not joined."""
    size = parallel.topology.group_size
    if gpu is not None:
        return NcclRanks(meeting, rank, size, gpu, start_limit_s(parallel))
    if memory is None or kernels.exchange is None or parallel.disable_custom_all_reduce:
        return _gloo_ranks(meeting, rank, size, parallel)
    return SharedMemoryRanks(kernels.exchange, memory, rank, size)


def prompt_ranks_in(meeting: Meeting, rank: int, parallel: ParallelConfig) -> GlooRanks | None:
    """The ranks that share prompts, as rank `rank` of all sees them: they have the same part of the weights. Not
    joined; None if there are no others. meeting: with any group."""
    topology = parallel.topology
    groups, own_rank = topology.num_prompt_groups, topology.rank_in_group(rank)
    if groups == 1:
        return None
    return _gloo_ranks(replace(meeting, group=f"prompts {own_rank}"), topology.group_of(rank), groups, parallel)


def _gloo_ranks(meeting: Meeting, rank: int, size: int, parallel: ParallelConfig) -> GlooRanks:
    limits = start_limit_s(parallel), parallel.cpu_distributed_timeout_seconds or LIMIT_S
    return GlooRanks(meeting, rank, size, *limits)


def wait_for_all(ranks: RanksT) -> RanksT:
    """Joins them. Raises RuntimeError if one does not come."""
    ranks.join()
    return ranks


def stage_link(resolved: Resolved, before: socket.socket, after: socket.socket) -> StageLink:
    """before, after: connections to the stages next to this one."""
    width, dtype = resolved.model_spec.stream_width, getattr(torch, resolved.model.dtype)
    return StageLink(before, after, width, dtype, own_gpu(resolved))
