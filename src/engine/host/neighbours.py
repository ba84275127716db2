"""Neighbours: what replicas that share the experts of a model inherit, to compute every step together.

Memory through which they exchange, and a doorbell of each: it wakes one that waits for messages when another begins a
step. Without torch: the process that starts them makes it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from .shared_memory import SharedMemory


class Doorbell:
    """Doorbell of one replica; all can ring it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def new(cls) -> Doorbell:
        """Raises OSError."""
        return cls(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def ring(self) -> None:
        """Make the file descriptor readable until it is silenced."""
        os.eventfd_write(self.fd, 1)

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it has not been rung
            os.eventfd_read(self.fd)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Memory and doorbells of all replicas, as the replica with this rank sees them."""

    rank: int
    memory: SharedMemory
    doorbells: tuple[Doorbell, ...]  # of all, by rank

    @classmethod
    def new(cls, size: int) -> Neighbours:
        """Return the Neighbours of rank 0 of `size`, for processes that are started. Raises OSError."""
        return cls(0, SharedMemory.new(size), tuple(Doorbell.new() for _ in range(size)))

    @classmethod
    def inherited(cls, numbers: Sequence[int]) -> Neighbours:
        """numbers: of `words`."""
        rank, memory, *doorbells = numbers
        return cls(rank, SharedMemory(memory, len(doorbells)), tuple(map(Doorbell, doorbells)))

    def words(self, rank: int) -> list[str]:
        """Arguments from which the process of a replica makes its Neighbours."""
        return [str(number) for number in (rank, *self.descriptors)]

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self.memory.fd, *(each.fd for each in self.doorbells))

    @property
    def size(self) -> int:
        return len(self.doorbells)

    @property
    def own_doorbell(self) -> Doorbell:
        return self.doorbells[self.rank]
