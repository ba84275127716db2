"""Ranks with a GPU each, which exchange through NCCL of torch.distributed. A captured step contains the exchanges."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from .gloo import Meeting, SummingRanks, store_of, unless_closed

_closed_groups: list[Any] = []  # kept: a destructor would wait for operations that cannot end


class NcclRanks(SummingRanks):
    is_capturable = True

    def __init__(self, meeting: Meeting, rank: int, size: int, device: torch.device, timeout_s: float) -> None:
        """device: only of this rank. timeout_s: for all ranks to come. `join` comes before the first exchange."""
        self.rank, self.size = rank, size
        self._meeting, self._device, self._limit = meeting, device, timedelta(seconds=timeout_s)
        self._group: Any = None
        self._is_closed = threading.Event()

    @property
    def table(self) -> dict[str, str]:
        version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        return {"exchange": f"{self.size} GPUs, one for each process, through NCCL {version}"}

    def join(self) -> None:
        """See Ranks.join. Raises RuntimeError if a rank does not come, or after `close`."""
        self._group = unless_closed(self._joined, self._is_closed, "join-nccl")

    def close(self) -> None:
        """See Ranks.close. Kernels that wait for another rank end."""
        was_closed = self._is_closed.is_set()
        self._is_closed.set()
        if not was_closed and (group := self._group) is not None:
            _closed_groups.append(group)
            threading.Thread(target=group.abort, name="abort-nccl", daemon=True).start()  # it may take seconds

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """See Ranks.sum. NCCL rounds to the type of `x` after each addition; all ranks get the same bits. In place."""
        total = x.contiguous()
        _queued(self._group.allreduce([total], _synchronous(dist.AllreduceOptions())))
        return total

    def gather(self, x: torch.Tensor, width: int) -> torch.Tensor:
        """See Ranks.gather."""
        parts = self.of_all(x)
        if self.rank:
            return x
        return parts.transpose(0, 1).reshape(len(x), -1)[:, :width].contiguous()

    def of_all(self, x: torch.Tensor) -> torch.Tensor:
        """See SummingRanks.of_all."""
        parts = x.new_empty(self.size, *x.shape)
        options = _synchronous(distributed_c10d.AllgatherOptions())  # type: ignore[attr-defined]
        _queued(self._group._allgather_base(parts, x.contiguous(), options))
        return parts

    def from_rank(self, x: torch.Tensor, owner: int) -> None:
        """See Ranks.from_rank."""
        options = _synchronous(dist.BroadcastOptions())
        options.rootRank = owner
        _queued(self._group.broadcast([x], options))

    def _joined(self) -> Any:
        meeting = self._meeting
        store = store_of(meeting, self._limit.total_seconds())
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._limit
        # not the process group of torch.distributed itself, of which a process has one: users' code may need it
        prefixed = dist.PrefixStore(meeting.group, store)  # type: ignore[attr-defined]
        group: Any = dist.ProcessGroupNCCL(prefixed, self.rank, self.size, options)
        first = torch.zeros(1, dtype=torch.int32, device=self._device)
        _queued(group.broadcast([first], _synchronous(dist.BroadcastOptions())))  # connects, which no capture can
        torch.cuda.synchronize(self._device)
        return group


def _synchronous(options: Any) -> Any:
    """The operation is queued on the current stream, not on one of NCCL's own."""
    options.asyncOp = False
    return options


def _queued(work: Any) -> None:
    """work: None where the operation is on the current stream; else that stream waits for it. The host does not."""
    if work is not None:
        work.wait()
