"""Exchange between the processes of one machine that compute a model together, through memory that they share.

The functions wait for all ranks, so all must call them in the same order. They raise ExchangeClosed when another rank
has ended.
"""

from __future__ import annotations

import torch

from ..host.shared_memory import SharedMemory
from .cpu.library import INT, INT64, POINTER, CpuLibrary, pointer

# Inputs of experts, and those of each token with their weights: x, ids and weights of experts_reference.
Choice = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class ExchangeClosed(RuntimeError):
    def __init__(self) -> None:
        super().__init__("another process of this model has ended")


def own_rows_reference(ids: torch.Tensor, first: int, rows: int) -> torch.Tensor:
    """ids: [T] int64, rows of a table of which a rank has `rows`, beginning with row `first`.

    Returns them as rows of its part, 0 for rows that it does not have.
    """
    own = ids - first
    return own.where((own >= 0) & (own < rows), 0)


def merge_parts_reference(parts: torch.Tensor, log_totals: torch.Tensor) -> torch.Tensor:
    """Attention over all tokens, from its results over disjoint parts of them.

    Args:
        parts: [P, T, H, D], each zeros if there are no tokens in it.
        log_totals: [P, T, H] float32, the logarithm of each sum of exponentials of scores.
    Returns:
        [T, H, D] in the dtype of `parts`; arithmetic in float32.

    Source: FlashDecoding, and arXiv:2205.14135, section 3.1.
    """
    largest = log_totals.amax(0)
    weights = torch.exp(log_totals - largest.where(largest > -torch.inf, 0))
    weights = weights / weights.sum(0).clamp_min(torch.finfo(torch.float32).tiny)
    return (parts.float() * weights[..., None]).sum(0).to(parts.dtype)


class Exchange:
    """Exchange of tensors of one dtype. In each method `memory` is what the processes share, `ranks` their number, and
    `rank` the place of this one."""

    def __init__(self, library: CpuLibrary, dtype: torch.dtype) -> None:
        self._empty, self._dtype = library.memory.empty, dtype
        self._add = library.op("sum_over_ranks", dtype, [POINTER, INT, INT, POINTER, INT64], INT)
        self._gather = library.op("gather_columns", dtype, [POINTER, *[INT] * 4, POINTER, POINTER, *[INT64] * 3], INT)
        self._merge = library.op("merge_parts", dtype, [POINTER, *[INT] * 4, *[POINTER] * 3, *[INT64] * 3], INT)
        self._choose = library.op("rows_of_owners", dtype, [POINTER, INT, INT, POINTER, POINTER, *[INT64] * 3], INT)
        self._translate = library.function("own_rows", [POINTER, POINTER, *[INT64] * 3])
        self._announce = library.function("announce_tokens", [POINTER, INT, INT, INT64], INT)
        self._wait = library.function("await_tokens", [POINTER, INT, INT, POINTER], INT)
        self._gather_all = library.op("gather_tokens", dtype, [POINTER, INT, INT, *[POINTER] * 7, *[INT64] * 4], INT)
        self._sum_own = library.op("sum_of_tokens", dtype, [POINTER, INT, INT, *[POINTER] * 5, INT64, INT64], INT)

    def sum_over_ranks(self, memory: SharedMemory, rank: int, ranks: int, x: torch.Tensor) -> torch.Tensor:
        """x: the addend of this rank; it becomes the sum, computed in float32 and rounded once."""
        _check(self._add(memory.address, rank, ranks, pointer(x, self._dtype), x.numel()))
        return x

    def gather_columns(self, memory: SharedMemory, rank: int, ranks: int, x: torch.Tensor, width: int) -> torch.Tensor:
        """x: [N, C], the columns of this rank. Returns [N, width] of all ranks on rank 0, x on others.

        width: at most ranks * C; what is above is padding.
        """
        out = None if rank else self._empty(len(x), width, dtype=self._dtype)
        to = None if out is None else out.data_ptr()
        _check(self._gather(memory.address, rank, ranks, 0, ranks, pointer(x, self._dtype), to, *x.shape, width))
        return x if out is None else out

    def gather_in_group(
        self, memory: SharedMemory, rank: int, ranks: int, group: range, x: torch.Tensor
    ) -> torch.Tensor:
        """x: [N, C], the columns of this rank. Returns [N, size of the group * C], the columns of its group.

        group: consecutive ranks, this one among them. The ranks that are in other groups must call this too.
        """
        width = len(group) * x.shape[1]
        out = self._empty(len(x), width, dtype=self._dtype)
        where = memory.address, rank, ranks, group.start, len(group)
        _check(self._gather(*where, pointer(x, self._dtype), out.data_ptr(), *x.shape, width))
        return out

    def merge_parts(
        self, memory: SharedMemory, rank: int, ranks: int, group: range, part: torch.Tensor, log_totals: torch.Tensor
    ) -> torch.Tensor:
        """merge_parts_reference of the parts of a group, for the heads of this rank.

        part: [T, H, D], all heads of the group over the tokens of this rank; log_totals: [T, H] float32.
        Returns [T, H / size of the group, D].
        """
        num_tokens, num_heads, width = part.shape
        own = num_heads // len(group)
        out = self._empty(num_tokens, own, width, dtype=self._dtype)
        parts_at, totals_at = pointer(part, self._dtype), pointer(log_totals, torch.float32)
        where = memory.address, rank, ranks, group.start, len(group)
        _check(self._merge(*where, parts_at, totals_at, out.data_ptr(), num_tokens, own, width))
        return out

    def rows_of_owners(
        self, memory: SharedMemory, rank: int, ranks: int, x: torch.Tensor, ids: torch.Tensor, rows_each: int
    ) -> torch.Tensor:
        """x: [T, W]; ids: [T] int64, row t belongs to rank ids[t] // rows_each. Each row becomes its owner's."""
        ids_at = pointer(ids, torch.int64)
        _check(self._choose(memory.address, rank, ranks, pointer(x, self._dtype), ids_at, *x.shape, rows_each))
        return x

    def own_rows(self, ids: torch.Tensor, first: int, rows: int) -> torch.Tensor:
        """Computes own_rows_reference."""
        out = self._empty(len(ids), dtype=torch.int64)
        self._translate(pointer(ids, torch.int64), out.data_ptr(), len(ids), first, rows)
        return out

    def from_rank(self, memory: SharedMemory, rank: int, ranks: int, x: torch.Tensor, owner: int) -> None:
        """x: [N] int32, which becomes the tensor of rank `owner`."""
        owners = torch.tensor([owner])
        width = x.numel() * torch.int32.itemsize // self._dtype.itemsize  # the bits are copied
        _check(self._choose(memory.address, rank, ranks, pointer(x, torch.int32), owners.data_ptr(), 1, width, 1))

    def announce_tokens(self, memory: SharedMemory, rank: int, ranks: int, count: int) -> None:
        """Begins a step in which this rank has `count` tokens. Does not wait for the others."""
        _check(self._announce(memory.address, rank, ranks, count))

    def await_tokens(self, memory: SharedMemory, rank: int, ranks: int, counts: torch.Tensor) -> None:
        """counts: [ranks] int64, which become the tokens of each rank in the step that has begun."""
        _check(self._wait(memory.address, rank, ranks, pointer(counts, torch.int64)))

    def gather_tokens(
        self, memory: SharedMemory, rank: int, counts: torch.Tensor, own: Choice, capacity: int
    ) -> Choice:
        """The tokens of all ranks, rank r's in counts[r] rows, one rank after the other.

        Args:
            counts: [ranks] int64, tokens of each.
            own: of at most counts[rank] tokens.
            capacity: rows of the result, at least the sum of `counts`. The experts of rows without a token are -1.
        """
        x, ids, weights = own
        width, per_token = x.shape[1], ids.shape[1]
        all_x = self._empty(capacity, width, dtype=self._dtype)
        all_ids = self._empty(capacity, per_token, dtype=torch.int32)
        all_weights = self._empty(capacity, per_token, dtype=torch.float32)
        of_own = pointer(x, self._dtype), pointer(ids, torch.int32), pointer(weights, torch.float32)
        of_all = all_x.data_ptr(), all_ids.data_ptr(), all_weights.data_ptr()
        where = memory.address, rank, len(counts), pointer(counts, torch.int64)
        _check(self._gather_all(*where, *of_own, *of_all, len(x), capacity, width, per_token))
        return all_x, all_ids, all_weights

    def sum_of_tokens(
        self,
        memory: SharedMemory,
        rank: int,
        counts: torch.Tensor,
        x: torch.Tensor,
        rows: int,
        base: torch.Tensor | None,
        base_gate: torch.Tensor | None,
    ) -> torch.Tensor:
        """x: [N, W], what this rank has computed for the rows of gather_tokens. Returns [rows, W], the sums over the
        ranks for its own tokens, and of `base`, as experts_reference adds it."""
        out = self._empty(rows, x.shape[1], dtype=self._dtype)
        bases = (None if each is None else pointer(each, self._dtype) for each in (base, base_gate))
        where = memory.address, rank, len(counts), pointer(counts, torch.int64)
        _check(self._sum_own(*where, pointer(x, self._dtype), *bases, out.data_ptr(), rows, x.shape[1]))
        return out


def _check(is_closed: int) -> None:
    if is_closed:
        raise ExchangeClosed
