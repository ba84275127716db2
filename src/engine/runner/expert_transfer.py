"""An expert from one rank to the others, as the kernels hold it: packed, and quantised or not.

Two exchanges: the number of words, and the words, which are a description in JSON and the tensors. All ranks take part,
those too that do not need it: the exchanges are between all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch

from ...model.record import Record
from ..collectives import Ranks
from ..kernels import PackedExpert
from .sharded_state import ALIGNMENT, DTYPES, LinearLayout, linear_of, stored_linear

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_WORD = 4  # bytes


class _Tensor(Record):
    name: str
    dtype: str
    shape: tuple[int, ...]


class _Description(Record):
    gate_up: LinearLayout
    down: LinearLayout
    tensors: tuple[_Tensor, ...]


@dataclass(frozen=True, slots=True)
class Arrived:
    expert: PackedExpert
    num_bytes: int


def sent_expert(expert: PackedExpert, ranks: Ranks) -> int:
    """Sends an expert of this rank to all others, which call `received_expert`. Returns the number of bytes."""
    tensors: dict[str, torch.Tensor] = {}
    layouts = {"gate_up": stored_linear(expert.gate_up, "gate_up", tensors)}
    layouts["down"] = stored_linear(expert.down, "down", tensors)
    stored = [_Tensor(name=name, dtype=_NAMES[each.dtype], shape=tuple(each.shape)) for name, each in tensors.items()]
    text = _Description(**layouts, tensors=tuple(stored)).model_dump_json().encode()
    parts = [torch.frombuffer(bytearray(text), dtype=torch.uint8)]
    parts += [each.contiguous().view(-1).view(torch.uint8) for each in tensors.values()]
    starts = _starts([part.numel() for part in parts])
    content = torch.zeros(starts[-1], dtype=torch.uint8)
    for start, part in zip(starts, parts, strict=False):
        content[start : start + part.numel()] = part
    ranks.from_rank(torch.tensor([len(text), len(content) // _WORD], dtype=torch.int32), ranks.rank)
    ranks.from_rank(content.view(torch.int32), ranks.rank)
    return len(content)


def received_expert(owner: int, ranks: Ranks) -> Arrived:
    """What rank `owner` sends."""
    sizes = torch.zeros(2, dtype=torch.int32)
    ranks.from_rank(sizes, owner)
    text_size, num_words = sizes.tolist()
    words = torch.empty(num_words, dtype=torch.int32)
    ranks.from_rank(words, owner)
    content = words.view(torch.uint8)
    described = _Description.model_validate_json(content[:text_size].numpy().tobytes())
    tensors: dict[str, torch.Tensor] = {}
    dtypes = [DTYPES[each.dtype] for each in described.tensors]
    numbers = [
        torch.Size(each.shape).numel() * dtype.itemsize for each, dtype in zip(described.tensors, dtypes, strict=True)
    ]
    starts = _starts([text_size, *numbers])[1:]
    for each, dtype, start, size in zip(described.tensors, dtypes, starts, numbers, strict=False):
        tensors[each.name] = content[start : start + size].view(dtype).view(each.shape)
    gate_up = linear_of(described.gate_up, "gate_up", tensors.__getitem__)
    return Arrived(PackedExpert(gate_up, linear_of(described.down, "down", tensors.__getitem__)), len(content))


def _starts(sizes: list[int]) -> list[int]:
    """Starts of parts, and of what would follow them: kernels read tensors at multiples of ALIGNMENT."""
    return [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]
