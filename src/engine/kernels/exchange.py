"""Exchange between the processes of one machine that compute a model together, through memory that they share.

The functions wait for all ranks, so all must call them in the same order. They raise ExchangeClosed when another rank
has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..memory.shared_memory import SharedMemory
from .cpu.library import INT, INT64, POINTER, CpuLibrary, pointer

# Inputs of experts, and those of each token with their weights: x, ids and weights of experts_reference.
Choice = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class ExchangeClosed(RuntimeError):
    def __init__(self) -> None:
        super().__init__("another process of this model has ended")


@dataclass(frozen=True, slots=True)
class Exchange:
    """Of one dtype. memory: of SharedMemory; rank: of this process, of `ranks`."""

    sum_over_ranks: Callable[[SharedMemory, int, int, torch.Tensor], torch.Tensor]
    gather_columns: Callable[[SharedMemory, int, int, torch.Tensor, int], torch.Tensor]
    gather_in_group: Callable[[SharedMemory, int, int, range, torch.Tensor], torch.Tensor]
    merge_parts: Callable[[SharedMemory, int, int, range, torch.Tensor, torch.Tensor], torch.Tensor]
    rows_of_owners: Callable[[SharedMemory, int, int, torch.Tensor, torch.Tensor, int], torch.Tensor]
    own_rows: Callable[[torch.Tensor, int, int], torch.Tensor]
    from_rank: Callable[[SharedMemory, int, int, torch.Tensor, int], None]
    announce_tokens: Callable[[SharedMemory, int, int, int], None]
    await_tokens: Callable[[SharedMemory, int, int, torch.Tensor], None]
    gather_tokens: Callable[[SharedMemory, int, torch.Tensor, Choice, int], Choice]
    sum_of_tokens: Callable[
        [SharedMemory, int, torch.Tensor, torch.Tensor, int, torch.Tensor | None, torch.Tensor | None], torch.Tensor
    ]


def own_rows_reference(ids: torch.Tensor, first: int, rows: int) -> torch.Tensor:
    """ids: [T] int64, rows of a table of which a rank has `rows`, beginning with row `first`.

    Returns them as rows of its part, 0 for those that it does not have.
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


def exchange_cpu(library: CpuLibrary, dtype: torch.dtype) -> Exchange:
    empty = library.memory.empty
    add = library.op("sum_over_ranks", dtype, [POINTER, INT, INT, POINTER, INT64], INT)
    gather = library.op("gather_columns", dtype, [POINTER, *[INT] * 4, POINTER, POINTER, *[INT64] * 3], INT)
    merge = library.op("merge_parts", dtype, [POINTER, *[INT] * 4, *[POINTER] * 3, *[INT64] * 3], INT)
    choose = library.op("rows_of_owners", dtype, [POINTER, INT, INT, POINTER, POINTER, *[INT64] * 3], INT)
    translate = library.function("own_rows", [POINTER, POINTER, *[INT64] * 3])
    announce = library.function("announce_tokens", [POINTER, INT, INT, INT64], INT)
    wait = library.function("await_tokens", [POINTER, INT, INT, POINTER], INT)
    gather_all = library.op("gather_tokens", dtype, [POINTER, INT, INT, *[POINTER] * 7, *[INT64] * 4], INT)
    sum_own = library.op("sum_of_tokens", dtype, [POINTER, INT, INT, *[POINTER] * 5, INT64, INT64], INT)

    def sum_over_ranks(memory: SharedMemory, rank: int, ranks: int, x: torch.Tensor) -> torch.Tensor:
        """x: the addend of this rank; it becomes the sum, computed in float32 and rounded once."""
        _check(add(memory.address, rank, ranks, pointer(x, dtype), x.numel()))
        return x

    def gather_columns(memory: SharedMemory, rank: int, ranks: int, x: torch.Tensor, width: int) -> torch.Tensor:
        """x: [N, C], the columns of this rank. Returns [N, width] of all ranks on rank 0, x on others.

        width: at most ranks * C; what is above is padding.
        """
        out = None if rank else empty(len(x), width, dtype=dtype)
        to = None if out is None else out.data_ptr()
        _check(gather(memory.address, rank, ranks, 0, ranks, pointer(x, dtype), to, *x.shape, width))
        return x if out is None else out

    def gather_in_group(memory: SharedMemory, rank: int, ranks: int, group: range, x: torch.Tensor) -> torch.Tensor:
        """x: [N, C], the columns of this rank. Returns [N, size of the group * C], those of its group.

        group: consecutive ranks, this one among them. The ranks that are in other groups must call this too.
        """
        width = len(group) * x.shape[1]
        out, size = empty(len(x), width, dtype=dtype), len(group)
        _check(
            gather(memory.address, rank, ranks, group.start, size, pointer(x, dtype), out.data_ptr(), *x.shape, width)
        )
        return out

    def merge_parts(
        memory: SharedMemory, rank: int, ranks: int, group: range, part: torch.Tensor, log_totals: torch.Tensor
    ) -> torch.Tensor:
        """merge_parts_reference of the parts of a group, for the heads of this rank.

        part: [T, H, D], all heads of the group over the tokens of this rank; log_totals: [T, H] float32.
        Returns [T, H / size of the group, D].
        """
        num_tokens, num_heads, width = part.shape
        own = num_heads // len(group)
        out = empty(num_tokens, own, width, dtype=dtype)
        parts_at, totals_at = pointer(part, dtype), pointer(log_totals, torch.float32)
        where = memory.address, rank, ranks, group.start, len(group)
        _check(merge(*where, parts_at, totals_at, out.data_ptr(), num_tokens, own, width))
        return out

    def rows_of_owners(
        memory: SharedMemory, rank: int, ranks: int, x: torch.Tensor, ids: torch.Tensor, rows_each: int
    ) -> torch.Tensor:
        """x: [T, W]; ids: [T] int64, row t belongs to rank ids[t] // rows_each. Each row becomes its owner's."""
        ids_at = pointer(ids, torch.int64)
        _check(choose(memory.address, rank, ranks, pointer(x, dtype), ids_at, *x.shape, rows_each))
        return x

    def own_rows(ids: torch.Tensor, first: int, rows: int) -> torch.Tensor:
        """As own_rows_reference."""
        out = empty(len(ids), dtype=torch.int64)
        translate(pointer(ids, torch.int64), out.data_ptr(), len(ids), first, rows)
        return out

    def from_rank(memory: SharedMemory, rank: int, ranks: int, x: torch.Tensor, owner: int) -> None:
        """x: [N] int32, which becomes that of rank `owner`."""
        owners = torch.tensor([owner])
        width = x.numel() * torch.int32.itemsize // dtype.itemsize  # the bits are copied
        _check(choose(memory.address, rank, ranks, pointer(x, torch.int32), owners.data_ptr(), 1, width, 1))

    def announce_tokens(memory: SharedMemory, rank: int, ranks: int, count: int) -> None:
        """Begins a step in which this rank has `count` tokens. Does not wait for the others."""
        _check(announce(memory.address, rank, ranks, count))

    def await_tokens(memory: SharedMemory, rank: int, ranks: int, counts: torch.Tensor) -> None:
        """counts: [ranks] int64, which become the tokens of each rank in the step that has begun."""
        _check(wait(memory.address, rank, ranks, pointer(counts, torch.int64)))

    def gather_tokens(memory: SharedMemory, rank: int, counts: torch.Tensor, own: Choice, capacity: int) -> Choice:
        """The tokens of all ranks, those of rank r in counts[r] rows, one rank after the other.

        Args:
            counts: [ranks] int64, tokens of each.
            own: of at most counts[rank] tokens.
            capacity: rows of the result, at least the sum of `counts`. The experts of rows without a token are -1.
        """
        x, ids, weights = own
        width, per_token = x.shape[1], ids.shape[1]
        all_x = empty(capacity, width, dtype=dtype)
        all_ids = empty(capacity, per_token, dtype=torch.int32)
        all_weights = empty(capacity, per_token, dtype=torch.float32)
        of_own = pointer(x, dtype), pointer(ids, torch.int32), pointer(weights, torch.float32)
        of_all = all_x.data_ptr(), all_ids.data_ptr(), all_weights.data_ptr()
        where = memory.address, rank, len(counts), pointer(counts, torch.int64)
        _check(gather_all(*where, *of_own, *of_all, len(x), capacity, width, per_token))
        return all_x, all_ids, all_weights

    def sum_of_tokens(
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
        out = empty(rows, x.shape[1], dtype=dtype)
        bases = (None if each is None else pointer(each, dtype) for each in (base, base_gate))
        where = memory.address, rank, len(counts), pointer(counts, torch.int64)
        _check(sum_own(*where, pointer(x, dtype), *bases, out.data_ptr(), rows, x.shape[1]))
        return out

    return Exchange(
        sum_over_ranks,
        gather_columns,
        gather_in_group,
        merge_parts,
        rows_of_owners,
        own_rows,
        from_rank,
        announce_tokens,
        await_tokens,
        gather_tokens,
        sum_of_tokens,
    )


def _check(is_closed: int) -> None:
    if is_closed:
        raise ExchangeClosed
