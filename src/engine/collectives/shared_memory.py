"""Ranks on one machine, which exchange through shared memory."""

from __future__ import annotations

import torch

from ..host.shared_memory import SharedMemory
from ..kernels.exchange import Exchange


class SharedMemoryRanks:
    is_capturable = True

    def __init__(self, exchange: Exchange, memory: SharedMemory, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._exchange, self._memory = exchange, memory

    @property
    def table(self) -> dict[str, str]:
        return {"exchange": f"{self.size} processes of this machine, through shared memory"}

    def join(self) -> None:
        """See Ranks.join. The first exchange waits."""

    def close(self) -> None:
        """See Ranks.close. Closes the exchange of all processes that have the memory."""
        self._memory.close_exchange()

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """See Ranks.sum."""
        return self._exchange.sum_over_ranks(self._memory, self.rank, self.size, x)

    def gather(self, x: torch.Tensor, width: int) -> torch.Tensor:
        """See Ranks.gather."""
        return self._exchange.gather_columns(self._memory, self.rank, self.size, x, width)

    def gather_in_group(self, x: torch.Tensor, group: range) -> torch.Tensor:
        """See Ranks.gather_in_group."""
        return self._exchange.gather_in_group(self._memory, self.rank, self.size, group, x)

    def merge_parts(self, part: torch.Tensor, log_totals: torch.Tensor, group: range) -> torch.Tensor:
        """See Ranks.merge_parts."""
        return self._exchange.merge_parts(self._memory, self.rank, self.size, group, part, log_totals)

    def own_rows(self, ids: torch.Tensor, rows_each: int) -> torch.Tensor:
        """See Ranks.own_rows."""
        return self._exchange.own_rows(ids, self.rank * rows_each, rows_each)

    def rows_of_owners(self, x: torch.Tensor, ids: torch.Tensor, rows_each: int) -> torch.Tensor:
        """See Ranks.rows_of_owners."""
        return self._exchange.rows_of_owners(self._memory, self.rank, self.size, x, ids, rows_each)

    def from_rank(self, x: torch.Tensor, owner: int) -> None:
        """See Ranks.from_rank."""
        self._exchange.from_rank(self._memory, self.rank, self.size, x, owner)
