"""Writes the weights of a deployment as its kernels hold them, into a folder that is there completely or not at all.

engine/runner/sharded_state.py reads what is written here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..config import ModelFilesError, Resolved
from ..config.checkpoint.gguf import without_tensors
from ..config.checkpoint.layout import INDEXES
from ..config.checkpoint.model_files import is_gguf, is_like
from ..config.checkpoint.settings import SHARD_PATTERN
from ..config.fetch import MODEL_FILES, TOKENIZER_FILES
from ..config.resolve.model_config import read_values
from ..config.resolve.sharded_state import (
    FORMAT_VERSION,
    STATE_JSON,
    VOCABULARY_GGUF,
    ShardedState,
    StateShape,
    read_sharded_state,
)
from ..engine.runner.loaded_model import load_weights_on_cpu
from ..engine.runner.measure import PhaseClock
from ..engine.runner.sharded_state import ALIGNMENT, LAYOUT_JSON, RankLayout, shape_of, state_of
from ..model.record import Record
from ..version import __version__
from .safetensors_file import bytes_of_tensor, dtype_name, to_disk, write
from .target import check_generates, written_whole

_CHUNK_BYTES = 16 << 20  # between two steps of the progress
_NOT_COPIED = (STATE_JSON, *INDEXES.values(), LAYOUT_JSON.format(rank="*"))


@dataclass(frozen=True, slots=True)
class Packed:
    """A loaded model, as it will be written."""

    resolved: Resolved
    shape: StateShape
    layout: RankLayout
    tensors: Mapping[str, torch.Tensor]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def parts(self, max_bytes: int) -> list[dict[str, torch.Tensor]]:
        """The tensors of each file, padding included: the next tensor begins at a multiple of ALIGNMENT.

        max_bytes: of the tensors of a file, unless one of them is larger.
        """
        files: list[dict[str, torch.Tensor]] = [{}]
        size = 0
        for name, tensor in self.tensors.items():
            if files[-1] and size + tensor.nbytes > max_bytes:
                files.append({})
                size = 0
            files[-1][name] = tensor
            if padding := -tensor.nbytes % ALIGNMENT:
                files[-1][f"{name}.padding"] = torch.zeros(padding, dtype=torch.uint8)
            size += tensor.nbytes + padding
        return files


def pack(resolved: Resolved, phases: PhaseClock) -> Packed:
    """Loads the model as a server would. Raises ModelFilesError for weights that do not fit it, or none at all."""
    if resolved.device.device != "cpu":
        raise ModelFilesError(
            f"`device.device` is {resolved.device.device}; a sharded state has the weights as a CPU holds them",
            code="M304",
        )
    if resolved.load.load_format == "dummy":
        raise ModelFilesError("`load.load_format: dummy` has no weights that could be written", code="M304")
    check_generates(resolved.model_files)
    kernels, model = load_weights_on_cpu(resolved, phases)
    phases.stop()
    return Packed(resolved, shape_of(resolved, kernels), *state_of(model))


def save(
    packed: Packed,
    parts: Sequence[Mapping[str, torch.Tensor]],
    target: Path,
    progress: Callable[[int], None],
    *,
    replaces: bool = False,
) -> None:
    """Writes the folder `target`, which is empty or does not exist, or `replaces` a sharded state.

    parts: of `Packed.parts`.
    progress: called with the number of bytes that have been written since its last call.
    Raises OSError if there is no space.
    """
    with written_whole(target, packed.num_bytes, replaces=replaces) as made:
        made.mkdir()
        _copy_files(packed.resolved, made)
        for number, tensors in enumerate(parts):
            layout = {name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()}
            write(made / SHARD_PATTERN.format(rank=0, part=number), layout, _content(tensors, progress))
        _write_json(made / LAYOUT_JSON.format(rank=0), packed.layout)
        _write_json(made / STATE_JSON, _state(packed))


def _content(tensors: Mapping[str, torch.Tensor], progress: Callable[[int], None]) -> Iterator[memoryview]:
    for tensor in tensors.values():
        whole = bytes_of_tensor(tensor)
        for start in range(0, len(whole), _CHUNK_BYTES):
            part = whole[start : start + _CHUNK_BYTES]
            yield part
            progress(len(part))


def _state(packed: Packed) -> ShardedState:
    files = packed.resolved.model_files
    own = read_sharded_state(Path(files.model_path)) if files.state is not None else None
    config = own.gguf_config if own is not None else None
    if own is None and packed.shape.weight_names == "gguf":
        config = dict(read_values(_gguf(packed.resolved)))
    return ShardedState(
        format_version=FORMAT_VERSION,
        written_by=__version__,
        num_ranks=1,
        shape=packed.shape,
        stored_as=files.stored_as,
        own_codes=files.own_codes,
        num_stored=files.num_stored,
        gguf_config=config,
    )


def _gguf(resolved: Resolved) -> Path:
    """The file that describes the model."""
    folder = Path(resolved.model_files.model_path)
    if resolved.model_files.state is not None:
        return folder / VOCABULARY_GGUF
    return folder / resolved.model_files.weight_files[0]


def _copy_files(resolved: Resolved, made: Path) -> None:
    """Everything beside the weights: the description of the model, its tokenizer, and code of its repository."""
    files = resolved.model_files
    if files.spec.weight_names == "gguf":
        (made / VOCABULARY_GGUF).write_bytes(without_tensors(_gguf(resolved)))
    else:
        _copy(Path(files.model_path), (*MODEL_FILES, *(("*.py",) if files.code is not None else ())), made)
        _copy(Path(files.config_path), ("config.json", "params.json"), made)
    if (tokenizer := files.tokenizer_path) is not None and not is_gguf(tokenizer):
        _copy(Path(tokenizer), TOKENIZER_FILES, made)


def _copy(source: Path, patterns: tuple[str, ...], made: Path) -> None:
    for name in os.listdir(source):
        if is_like(name, patterns) and not is_like(name, _NOT_COPIED) and (source / name).is_file():
            shutil.copyfile(source / name, made / name)


def _write_json(path: Path, record: Record) -> None:
    with path.open("wb") as stream:
        stream.write(record.model_dump_json(exclude_defaults=True).encode() + b"\n")
        to_disk(stream)
