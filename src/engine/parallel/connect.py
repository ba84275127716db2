"""Joins the processes of a model."""

from __future__ import annotations

import socket

import torch

from ...config import Resolved
from ..kernels import KernelSet
from ..kernels.exchange import SharedMemory
from .gloo import GlooRanks
from .group import Ranks
from .shared_memory import SharedMemoryRanks
from .stages import StageLink

ADDRESS, GLOO_LIMIT_S = "127.0.0.1", 600.0


def connect(
    kernels: KernelSet, memory: SharedMemory, port: int, rank: int, size: int, *, uses_gloo: bool = False
) -> Ranks:
    """The ranks, as rank `rank` sees them: through shared memory if the kernels can.

    port: of rank 0 for Gloo. Raises RuntimeError if a rank does not come.
    """
    if kernels.exchange is None or uses_gloo:
        return GlooRanks(ADDRESS, port, rank, size, GLOO_LIMIT_S)
    return SharedMemoryRanks(kernels.exchange, memory, rank, size)


def stage_link(resolved: Resolved, before: socket.socket, after: socket.socket) -> StageLink:
    """before, after: connections to the stages next to this one."""
    return StageLink(before, after, resolved.model_spec.hidden_size, getattr(torch, resolved.model.dtype))
