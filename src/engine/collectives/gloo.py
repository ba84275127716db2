"""Ranks that exchange through torch.distributed with Gloo: over a network connection, also on one machine."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ..kernels.exchange import merge_parts_reference, own_rows_reference
from .turns import give_turn

Result = TypeVar("Result")
_POLL = timedelta(seconds=0.25)
_abandoned: list[Any] = []  # groups in which an operation waits without end: their destructors would wait for it


@dataclass(frozen=True, slots=True)
class Meeting:
    """Place where ranks find each other: a store, which one process has."""

    address: str
    port: int
    own_address: str  # of this process, to which the other ranks connect
    group: str = ""  # distinguishes groups that meet in one store


class RanksLost(RuntimeError):
    def __init__(self) -> None:
        super().__init__("another process of this model has ended")


class SummingRanks(ABC):
    """Ranks without memory in common: what they do with the sum and the tensors of all."""

    rank: int

    @abstractmethod
    def sum(self, x: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def of_all(self, x: torch.Tensor) -> torch.Tensor:
        """x: of any shape. Returns [ranks, *shape], the tensors of all ranks."""

    def swapped(self, x: torch.Tensor, group: range) -> torch.Tensor:
        """x: [ranks in the group, *shape], one for each. Returns the same, what each of the group has for this rank."""
        return self.of_all(x)[group.start : group.stop, self.rank - group.start]

    def gather_in_group(self, x: torch.Tensor, group: range) -> torch.Tensor:
        """See Ranks.gather_in_group."""
        return self.swapped(x.expand(len(group), *x.shape), group).transpose(0, 1).flatten(1)

    def merge_parts(self, part: torch.Tensor, log_totals: torch.Tensor, group: range) -> torch.Tensor:
        """See Ranks.merge_parts."""
        shape = len(part), len(group), part.shape[1] // len(group)  # tokens, ranks, heads of each
        by_rank = (each.view(*shape, *each.shape[2:]).transpose(0, 1) for each in (part, log_totals))
        return merge_parts_reference(*(self.swapped(each, group) for each in by_rank))

    def own_rows(self, ids: torch.Tensor, rows_each: int) -> torch.Tensor:
        """See Ranks.own_rows."""
        return own_rows_reference(ids, self.rank * rows_each, rows_each)

    def rows_of_owners(self, x: torch.Tensor, ids: torch.Tensor, rows_each: int) -> torch.Tensor:
        """See Ranks.rows_of_owners. Zeros of the others are added."""
        is_own = (ids // rows_each == self.rank)[:, None]
        return self.sum(x.where(is_own, 0))


class GlooRanks(SummingRanks):
    is_capturable = False

    def __init__(
        self, meeting: Meeting, rank: int, size: int, timeout_s: float, exchange_timeout_s: float | None = None
    ) -> None:
        """timeout_s: for all ranks to come. exchange_timeout_s: of each exchange; None for the same.
        `join` comes before the first exchange."""
        self.rank, self.size = rank, size
        self._meeting, self._limit = meeting, timedelta(seconds=timeout_s)
        self._exchange_limit = timedelta(seconds=exchange_timeout_s or timeout_s)
        self._group: Any = None
        self._groups: dict[range, Any] = {}  # of some of the ranks, with this one
        self._is_closed = threading.Event()

    @property
    def table(self) -> dict[str, str]:
        where = f"{self._meeting.address}:{self._meeting.port}"
        exchange = f"{self.size} processes, through Gloo; they meet at {where}"
        return {"exchange": exchange, "decode_step": "op by op: what Gloo does is not captured"}

    def join(self) -> None:
        """Waits for all ranks. Raises RuntimeError if one does not come, or after `close`."""
        self._group = self._groups[range(self.size)] = self._connected(range(self.size))

    def close(self) -> None:
        """Calls that wait, and later ones, raise RanksLost: a rank that does not answer would be waited for."""
        self._is_closed.set()

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """See Ranks.sum. The sum is in float32: Gloo would round after every addition."""
        total = x.float()
        self._wait(self._group.allreduce([total]))
        return total.to(x.dtype)

    def gather(self, x: torch.Tensor, width: int) -> torch.Tensor:
        """See Ranks.gather."""
        parts = [] if self.rank else [torch.empty_like(x) for _ in range(self.size)]
        self._wait(self._group.gather([parts] if parts else [], [x.contiguous()], dist.GatherOptions()))
        return torch.cat(parts, 1)[:, :width].contiguous() if parts else x

    def of_all(self, x: torch.Tensor) -> torch.Tensor:
        """See SummingRanks.of_all."""
        found = x.new_empty(self.size, *x.shape)
        self._wait(self._group.allgather([list(found)], [x.contiguous()]))
        return found

    def swapped(self, x: torch.Tensor, group: range) -> torch.Tensor:
        """See SummingRanks.swapped. The first call connects the group."""
        if group not in self._groups:
            self._groups[group] = self._connected(group)
        sent = x.contiguous()
        found = torch.empty_like(sent)
        self._wait(self._groups[group].alltoall_base(found, sent, [], [], dist.AllToAllOptions()))
        return found

    def from_rank(self, x: torch.Tensor, owner: int) -> None:
        """See Ranks.from_rank."""
        options = dist.BroadcastOptions()
        options.rootRank = owner
        self._wait(self._group.broadcast([x], options))

    def _connected(self, group: range) -> Any:
        return unless_closed(partial(self._joined, group), self._is_closed, "join-gloo")

    def _joined(self, group: range) -> Any:
        meeting = self._meeting
        store = store_of(meeting, self._limit.total_seconds())
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=meeting.own_address)]
        options._timeout = self._limit
        # not the process group of torch.distributed itself, of which a process has one: users' code may need it
        name = meeting.group if len(group) == self.size else f"{meeting.group}, ranks from {group.start}"
        prefixed = dist.PrefixStore(name, store)  # type: ignore[attr-defined]
        joined: Any = dist.ProcessGroupGloo(prefixed, group.index(self.rank), len(group), options)
        joined.set_timeout(self._exchange_limit)
        return joined

    def _wait(self, work: Any) -> None:
        """Waits for an operation, and looks at times whether it can still end."""
        give_turn()  # another part of the step is computed meanwhile
        while True:
            try:
                work.wait(_POLL)
            except RuntimeError:
                if self._is_closed.is_set():
                    _abandoned.extend(self._groups.values())
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
    """A store where ranks meet, and its port. Listens only on that address, as long as the store exists."""
    listener = socket.create_server((address, 0), family=_family(address))
    port = listener.getsockname()[1]
    listening: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listener.detach()}
    return dist.TCPStore(address, port, **listening), port  # type: ignore[attr-defined]


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
