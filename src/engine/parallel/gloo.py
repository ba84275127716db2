"""Ranks that exchange through torch.distributed with Gloo: over a network connection, also on one machine."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ..kernels.exchange import merge_parts_reference, own_rows_reference

Result = TypeVar("Result")
_POLL = timedelta(seconds=0.25)
_abandoned: list[Any] = []  # groups in which an operation waits without end: their destructors would wait for it


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where ranks find each other: a store, which one process has."""

    address: str
    port: int
    own_address: str  # of this process, to which the other ranks connect
    group: str = ""  # distinguishes groups that meet in one store


class RanksLost(RuntimeError):
    def __init__(self) -> None:
        super().__init__("another process of this model has ended")


class SummingRanks(ABC):
    """Ranks without memory in common: what they do with two operations, the sum and the tensors of all."""

    rank: int

    @abstractmethod
    def sum(self, x: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def of_all(self, x: torch.Tensor) -> torch.Tensor:
        """x: of any shape. Returns [ranks, *shape], those of all ranks."""

    def gather_in_group(self, x: torch.Tensor, group: range) -> torch.Tensor:
        """As Ranks. The ranks of other groups are among those that exchange."""
        return self.of_all(x)[group.start : group.stop].transpose(0, 1).flatten(1)

    def merge_parts(self, part: torch.Tensor, log_totals: torch.Tensor, group: range) -> torch.Tensor:
        """As Ranks."""
        parts, totals = self.of_all(part), self.of_all(log_totals)
        own = part.shape[1] // len(group)
        heads = slice((self.rank - group.start) * own, (self.rank - group.start + 1) * own)
        among = slice(group.start, group.stop)
        return merge_parts_reference(parts[among, :, heads], totals[among, :, heads])

    def own_rows(self, ids: torch.Tensor, rows_each: int) -> torch.Tensor:
        """As Ranks."""
        return own_rows_reference(ids, self.rank * rows_each, rows_each)

    def rows_of_owners(self, x: torch.Tensor, ids: torch.Tensor, rows_each: int) -> torch.Tensor:
        """As Ranks: zeros of the others are added."""
        is_own = (ids // rows_each == self.rank)[:, None]
        return self.sum(x.where(is_own, 0))


class GlooRanks(SummingRanks):
    is_capturable = False

    def __init__(self, meeting: Meeting, rank: int, size: int, timeout_s: float) -> None:
        """timeout_s: of the start, and of each exchange. `join` comes before the first exchange."""
        self.rank, self.size = rank, size
        self._meeting, self._limit = meeting, timedelta(seconds=timeout_s)
        self._group: Any = None
        self._is_closed = threading.Event()

    @property
    def table(self) -> dict[str, str]:
        where = f"{self._meeting.address}:{self._meeting.port}"
        exchange = f"{self.size} processes, through Gloo; they meet at {where}"
        return {"exchange": exchange, "decode_step": "op by op: what Gloo does is not captured"}

    def join(self) -> None:
        """Waits for all ranks. Raises RuntimeError if one does not come, or after `close`."""
        self._group = unless_closed(self._joined, self._is_closed, "join-gloo")

    def close(self) -> None:
        """Calls that wait, and later ones, raise RanksLost: a rank that does not answer would be waited for."""
        self._is_closed.set()

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """As Ranks. In float32: Gloo would round after every addition."""
        total = x.float()
        self._wait(self._group.allreduce([total]))
        return total.to(x.dtype)

    def gather(self, x: torch.Tensor, width: int) -> torch.Tensor:
        """As Ranks."""
        parts = [] if self.rank else [torch.empty_like(x) for _ in range(self.size)]
        self._wait(self._group.gather([parts] if parts else [], [x.contiguous()], dist.GatherOptions()))
        return torch.cat(parts, 1)[:, :width].contiguous() if parts else x

    def of_all(self, x: torch.Tensor) -> torch.Tensor:
        """As SummingRanks."""
        found = x.new_empty(self.size, *x.shape)
        self._wait(self._group.allgather([list(found)], [x.contiguous()]))
        return found

    def from_rank(self, x: torch.Tensor, owner: int) -> None:
        """As Ranks."""
        options = dist.BroadcastOptions()
        options.rootRank = owner
        self._wait(self._group.broadcast([x], options))

    def _joined(self) -> Any:
        meeting = self._meeting
        store = store_of(meeting, self._limit.total_seconds())
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=meeting.own_address)]
        options._timeout = self._limit
        # not the process group of torch.distributed itself, of which a process has one: users' code may need it
        prefixed = dist.PrefixStore(meeting.group, store)  # type: ignore[attr-defined]
        return dist.ProcessGroupGloo(prefixed, self.rank, self.size, options)

    def _wait(self, work: Any) -> None:
        """Waits for an operation, and looks at times whether it can still end."""
        while True:
            try:
                work.wait(_POLL)
            except RuntimeError:
                if self._is_closed.is_set():
                    _abandoned.append(self._group)
                    raise RanksLost from None
                if work.is_completed():  # it failed, or has ended since
                    work.wait()
                    return
            else:
                return


def unless_closed(call: Callable[[], Result], is_closed: threading.Event, name: str) -> Result:
    """The result of `call`, which waits for other ranks and cannot be interrupted: it has a thread of this name.

    Raises RanksLost once the event is set.
    """
    results: list[Result] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            results.append(call())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL.total_seconds())
        if is_closed.is_set():
            raise RanksLost
    if errors:
        raise errors[0]
    return results[0]


def store_of(meeting: Meeting, timeout_s: float) -> Any:
    """A connection to the store of `open_store`. timeout_s: of its calls."""
    limit = timedelta(seconds=timeout_s)
    return dist.TCPStore(meeting.address, meeting.port, timeout=limit, wait_for_workers=False)  # type: ignore[attr-defined]


def open_store(address: str) -> tuple[Any, int]:
    """A store where ranks meet, and its port. Listens on that address alone, as long as the store exists."""
    listener = socket.create_server((address, 0), family=_family(address))
    port = listener.getsockname()[1]
    listening: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listener.detach()}
    return dist.TCPStore(address, port, **listening), port  # type: ignore[attr-defined]


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
