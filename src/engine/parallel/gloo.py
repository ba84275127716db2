"""Ranks that exchange through torch.distributed with Gloo: over a network connection, also on one machine."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..kernels.exchange import own_rows_reference


class GlooRanks:
    is_capturable = False

    def __init__(self, address: str, port: int, rank: int, size: int, timeout_s: float) -> None:
        """Waits for all ranks. address, port: of rank 0, which listens there. timeout_s: of the start, and of each
        exchange. Raises RuntimeError if a rank does not come."""
        self.rank, self.size = rank, size
        self._where = f"{address}:{port}"
        limit = timedelta(seconds=timeout_s)
        store = dist.TCPStore(address, port, size, is_master=rank == 0, timeout=limit)  # type: ignore[attr-defined]
        # not the process group of torch.distributed itself, of which a process has one: users' code may need it
        self._group: Any = dist.ProcessGroupGloo(store, rank, size, limit)

    @property
    def table(self) -> dict[str, str]:
        exchange = f"{self.size} processes, through Gloo at {self._where}"
        return {"exchange": exchange, "decode_step": "op by op: what Gloo does is not captured"}

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """As Ranks. In float32: Gloo would round after every addition."""
        total = x.float()
        self._group.allreduce([total]).wait()
        return total.to(x.dtype)

    def gather(self, x: torch.Tensor, width: int) -> torch.Tensor:
        """As Ranks."""
        parts = [] if self.rank else [torch.empty_like(x) for _ in range(self.size)]
        self._group.gather([parts] if parts else [], [x.contiguous()], dist.GatherOptions()).wait()
        return torch.cat(parts, 1)[:, :width].contiguous() if parts else x

    def own_rows(self, ids: torch.Tensor, rows_each: int) -> torch.Tensor:
        """As Ranks."""
        return own_rows_reference(ids, self.rank * rows_each, rows_each)

    def rows_of_owners(self, x: torch.Tensor, ids: torch.Tensor, rows_each: int) -> torch.Tensor:
        """As Ranks."""
        is_own = (ids // rows_each == self.rank)[:, None]
        return self.sum(x.where(is_own, 0))
