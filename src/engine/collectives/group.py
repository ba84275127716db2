"""Ranks: the processes that compute one model, and the exchanges between them. All call them in the same order."""

from __future__ import annotations

from typing import Protocol

import torch


class Ranks(Protocol):
    """The calls raise RuntimeError when another rank has ended."""

    rank: int  # of this process
    size: int
    is_capturable: bool  # whether a captured step can have the exchanges

    @property
    def table(self) -> dict[str, str]:
        """A row of the start-up table."""
        ...

    def join(self) -> None:
        """Waits for all. Before any other call."""
        ...

    def close(self) -> None:
        """Ends the waiting of a call in another thread of this process. No call can follow."""
        ...

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """x: the addend of this rank, of any shape, which may be overwritten. Returns the sum, the same on all."""
        ...

    def gather(self, x: torch.Tensor, width: int) -> torch.Tensor:
        """x: [N, C], the columns of this rank. Returns [N, width], the columns of all ranks, on rank 0; x on others."""
        ...

    def gather_in_group(self, x: torch.Tensor, group: range) -> torch.Tensor:
        """x: [N, C], the columns of this rank. Returns [N, ranks in the group * C], the columns of its group.

        group: consecutive ranks, this one among them. Ranks of other groups call this at the same time.
        """
        ...

    def merge_parts(self, part: torch.Tensor, log_totals: torch.Tensor, group: range) -> torch.Tensor:
        """Attention of the heads of this rank over the tokens of all ranks of its group.

        part: [T, H, D], all heads of the group over the tokens of this rank; log_totals: [T, H] float32, their
        logarithms of totals (kernels/paged_attention.py). group: as of `gather_in_group`. Returns [T, H / ranks in the
        group, D].
        """
        ...

    def own_rows(self, ids: torch.Tensor, rows_each: int) -> torch.Tensor:
        """The places of rows of a table in this rank's part of it, which has `rows_each` rows.

        ids: [T] int64, rows of the whole table. Returns [T]; 0 for rows that other ranks have.
        """
        ...

    def rows_of_owners(self, x: torch.Tensor, ids: torch.Tensor, rows_each: int) -> torch.Tensor:
        """The rows of a table, each from the rank that has it.

        x: [T, W], the rows of this rank's part that `own_rows` has returned for `ids`; it may be overwritten.
        """
        ...

    def from_rank(self, x: torch.Tensor, owner: int) -> None:
        """x: [N] int32, which becomes the tensor of rank `owner`, bit by bit."""
        ...
