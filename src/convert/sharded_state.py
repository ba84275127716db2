"""Writes the tensors that a model reads, bit for bit, in files of limited size that name rank and part.

The form that `load.load_format: sharded_state` reads. Everything runs on one device, so there is one rank, which has
every tensor; left out are tensors that the model does not read, such as layers for training.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..config import ModelFilesError
from ..config.checkpoint.layout import INDEXES, read_tensors
from ..config.checkpoint.match import tensors_of
from ..config.checkpoint.settings import SHARD_PATTERN
from ..config.checkpoint.stored import FLOAT_DTYPES, StoredTensor
from ..config.resolve.described_model import ModelFiles
from ..engine.runner.weights import Checkpoint, in_files
from .safetensors_file import bytes_in_file, bytes_of_tensor, write
from .target import check_generates, new_checkpoint

_READ = ("safetensors", "pt", "npcache", "sharded_state")


@dataclass(frozen=True, slots=True)
class Sharding:
    """What will be written: decided from headers, before anything is."""

    source: Path
    stored: Mapping[str, StoredTensor]
    parts: Sequence[Sequence[str]]  # names of the tensors of each file
    left_out: Sequence[str]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.stored.values())


def plan_sharding(files: ModelFiles, max_part_bytes: int) -> Sharding:
    """max_part_bytes: of the tensors of a file, unless one of them is larger.

    Raises ModelFilesError for a checkpoint that has no such form.
    """
    folder = Path(files.model_path)
    if files.weight_format not in _READ:
        raise ModelFilesError(
            f"{folder}: its weights are in the format {files.weight_format}; sharded_state is written from "
            f"{', '.join(_READ[:-1])}, with a config.json",
            code="M304",
        )
    if files.state is not None:
        raise ModelFilesError(
            f"{folder}: weights as kernels hold them ({files.state.shown}); start from the original checkpoint",
            code="M304",
        )
    check_generates(files)
    every = read_tensors(folder, files.weight_files)
    is_native = files.implementation == "native"
    used = _read_by(tensors_of(folder, every, files.spec), every) if is_native else every
    for name, tensor in used.items():
        if tensor.strides is not None and tensor.dtype not in FLOAT_DTYPES:
            raise ModelFilesError(
                f"{tensor.file}: tensor `{name}` of dtype {tensor.dtype} is not contiguous", code="M304"
            )
    return Sharding(folder, used, _parts(used, max_part_bytes), [name for name in every if name not in used])


def save(sharding: Sharding, target: Path, progress: Callable[[int], None], *, replaces: bool = False) -> None:
    """Writes the folder `target`, which is empty or does not exist, or `replaces` a sharded state.

    progress: called with the number of bytes that have been written since its last call.
    Raises ModelFilesError for weights that cannot be read, OSError if there is no space.
    """
    checkpoint = Checkpoint(sharding.source, sharding.stored)
    indexes = tuple(INDEXES.values())
    with new_checkpoint(target, sharding.source, sharding.num_bytes, without=indexes, replaces=replaces) as made:
        for number, names in enumerate(sharding.parts):
            layout = {name: (sharding.stored[name].dtype, sharding.stored[name].shape) for name in names}
            write(made / SHARD_PATTERN.format(rank=0, part=number), layout, _content(checkpoint, names, progress))


def _read_by(model: Mapping[str, StoredTensor], every: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Tensors of `every` of which the model reads something."""
    starts: dict[Path, list[int]] = {}
    for tensor in every.values():
        starts.setdefault(tensor.file, []).append(tensor.offset)
    for each in starts.values():
        each.sort()
    used = {
        (part.file, starts[part.file][bisect_right(starts[part.file], part.offset) - 1])
        for part in in_files(model.values())
    }
    return {name: tensor for name, tensor in every.items() if (tensor.file, tensor.offset) in used}


def _parts(stored: Mapping[str, StoredTensor], max_bytes: int) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    size = 0
    for name, tensor in stored.items():
        if parts[-1] and size + tensor.num_bytes > max_bytes:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += tensor.num_bytes
    return parts


def _content(
    checkpoint: Checkpoint, names: Sequence[str], progress: Callable[[int], None]
) -> Iterator[bytes | memoryview]:
    for name in names:
        tensor = checkpoint.tensors[name]
        if tensor.strides is None:
            yield from bytes_in_file(tensor.file, tensor.offset, tensor.num_bytes)
        else:
            whole = torch.empty(tensor.shape, dtype=getattr(torch, FLOAT_DTYPES[tensor.dtype]))
            checkpoint.read(name, whole)
            yield bytes_of_tensor(whole)
        progress(tensor.num_bytes)
