"""The memory of weights that are loaded: which tensors of a model have it, and which of them share it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass

import torch

from ..kernels import KernelSet
from ..layers.loading import Loadable

ALIGNMENT = 256  # bytes; vector loads of kernels need 16
_LEAST_BYTES = 4096  # of memory that is worth a copy

Users = tuple[torch.UntypedStorage, list[torch.Tensor]]  # memory, and the tensors that use it


def tensors_in(part: object) -> Iterator[torch.Tensor]:
    """The tensors of a loaded part: in its attributes, in data classes, and in lists and tuples of them."""
    if isinstance(part, torch.Tensor):
        yield part
    elif isinstance(part, (list, tuple)):
        for each in part:
            yield from tensors_in(each)
    elif is_dataclass(part) and not isinstance(part, type):
        for field in fields(part):
            yield from tensors_in(getattr(part, field.name))


def weights_in(loadables: Iterable[Loadable]) -> list[torch.Tensor]:
    """The tensors of loaded parts that are worth to be moved. The others, vectors and tables of codes, are small."""
    parts = (value for part in loadables for value in vars(part).values() if not isinstance(value, KernelSet))
    found = (tensor for part in parts for tensor in tensors_in(part))
    return [tensor for tensor in found if tensor.untyped_storage().nbytes() >= _LEAST_BYTES]


def storages_of(tensors: Sequence[torch.Tensor]) -> list[Users]:
    """The memory that the tensors use, each with its tensors."""
    found: dict[int, Users] = {}
    seen: set[int] = set()
    for tensor in tensors:
        if id(tensor) not in seen and tensor.numel():
            seen.add(id(tensor))
            storage = tensor.untyped_storage()
            found.setdefault(storage.data_ptr(), (storage, []))[1].append(tensor)
    return list(found.values())


def aligned(num_bytes: int, alignment: int = ALIGNMENT) -> int:
    return -(-num_bytes // alignment) * alignment
