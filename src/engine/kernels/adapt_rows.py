"""adapt_rows: what adapters (LoRA) change in the rows of the embedding that a step has looked up.

An adapter has rows in place of the model's, for all tokens or for some, or adds a product of two matrices of a low
rank. The table and the slots of the tokens are read when the op computes, also in a captured step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .cpu.library import INT64, POINTER, CpuLibrary, pointer
from .lora_add import LoraWeights, delta_reference

_LINE = 6  # numbers of a line of the table, see cpu/adapt_rows.cpp


@dataclass(frozen=True, slots=True)
class AdaptedRows:
    """What one adapter changes. The embedding's multiplier is in all of it."""

    rows: torch.Tensor | None = None  # [n, width], in place of the model's
    ids: torch.Tensor | None = None  # [n] int32, ascending, the tokens that they are for; None: of tokens 0 to n - 1
    a: torch.Tensor | None = None  # [vocabulary, rank]
    b: torch.Tensor | None = None  # [panels, rank, PANEL], the columns of B.T in panels

    @property
    def num_bytes(self) -> int:
        return sum(each.nbytes for each in (self.rows, self.ids, self.a, self.b) if each is not None)


class LoraEmbedding:
    """The adapters of an embedding, by slot. The table is at the same address as long as it exists."""

    def __init__(self, width: int, num_slots: int, device: torch.device) -> None:
        self.width = width
        self.slots: list[AdaptedRows | None] = [None] * num_slots
        self.table = torch.zeros(num_slots, _LINE, dtype=torch.int64, device=device)

    def place(self, slot: int, own: AdaptedRows | None) -> None:
        """own: None if the slot changes nothing."""
        self.slots[slot] = own
        line = [0] * _LINE
        if own is not None and own.rows is not None:
            line[:3] = own.rows.data_ptr(), 0 if own.ids is None else own.ids.data_ptr(), len(own.rows)
        if own is not None and own.a is not None and own.b is not None:
            line[3:] = own.a.data_ptr(), own.a.shape[1], own.b.data_ptr()
        self.table[slot] = torch.tensor(line, dtype=torch.int64)


AdaptRows = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, LoraEmbedding], None]


def adapt_rows_reference(
    rows: torch.Tensor, token_ids: torch.Tensor, slots: torch.Tensor, layer: LoraEmbedding
) -> None:
    """Changes rows of the embedding in place: those that the adapter of a token has, and its product added.

    rows: [T, width], of the tokens. token_ids: [T] int64. slots: [T] int32, below 0 without an adapter.
    """
    for slot, own in enumerate(layer.slots):
        if own is None:
            continue
        tokens = (slots == slot).nonzero()[:, 0]
        if own.rows is not None:
            wanted = token_ids[tokens]
            ids = torch.arange(len(own.rows)) if own.ids is None else own.ids.long()
            places = torch.searchsorted(ids, wanted).clamp(max=len(ids) - 1)
            is_own = ids[places] == wanted
            rows[tokens[is_own]] = own.rows[places[is_own]]
        if own.a is not None and own.b is not None:
            delta = LoraWeights(torch.eye(own.a.shape[1]), (0,), (own.b,))
            added = delta_reference(own.a[token_ids[tokens]], delta, (layer.width,))
            rows[tokens] = (rows[tokens].float() + added).to(rows.dtype)


def adapt_rows_cpu(library: CpuLibrary, dtype: torch.dtype) -> AdaptRows:
    """Takes adapters whose elements have the type of the rows."""
    call = library.op("adapt_rows", dtype, [POINTER] * 4 + [INT64] * 2)

    def adapt_rows(rows: torch.Tensor, token_ids: torch.Tensor, slots: torch.Tensor, layer: LoraEmbedding) -> None:
        count, width = rows.shape
        if width != layer.width or token_ids.shape != slots.shape or len(slots) != count:
            raise ValueError(
                f"rows are {tuple(rows.shape)}, token ids {tuple(token_ids.shape)}, slots {tuple(slots.shape)}, and "
                f"the embedding has {layer.width} columns"
            )
        call(
            pointer(rows, dtype),
            pointer(token_ids, torch.int64),
            pointer(slots, torch.int32),
            layer.table.data_ptr(),
            count,
            width,
        )

    return adapt_rows
