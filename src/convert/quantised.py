"""Quantises a checkpoint tensor by tensor, into a new folder that is there completely or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ..config import ModelFilesError
from ..config.checkpoint.layout import read_tensors
from ..config.checkpoint.model_files import CONFIG_JSON, INDEX, read_json
from ..config.checkpoint.stored import FLOAT_DTYPES, StoredTensor
from ..config.resolve.described_model import ModelFiles
from ..engine.runner.weights import Checkpoint
from .encoders import GROUPS, Encoder, Method, encoder
from .safetensors_file import Layout, bytes_in_file, bytes_of_tensor, dtype_name, num_bytes, to_disk, write
from .select import matrices
from .target import check_generates, new_checkpoint

WEIGHTS = "model.safetensors"
_OUTPUT = "lm_head"


@dataclass(frozen=True, slots=True)
class Conversion:
    """What will be written: decided from headers, before anything is."""

    source: Path
    stored: Mapping[str, StoredTensor]
    quantised: frozenset[str]
    encoder: Encoder

    @property
    def kept(self) -> int:
        """Matrices that are written as they are."""
        return sum(len(tensor.shape) > 1 and name not in self.quantised for name, tensor in self.stored.items())

    @property
    def bytes_before(self) -> int:
        return sum(tensor.num_bytes for tensor in self.stored.values())

    @property
    def bytes_after(self) -> int:
        return num_bytes(self.layout())

    def layout(self) -> Layout:
        layout: dict[str, tuple[str, tuple[int, ...]]] = {}
        for name, tensor in self.stored.items():
            if name not in self.quantised:
                layout[name] = tensor.dtype, tensor.shape
                continue
            outputs, inputs = tensor.shape
            for end, (dtype, shape) in self.encoder.layout((outputs, inputs)).items():
                layout[_part(name, end)] = dtype_name(dtype), shape
        return layout


def plan_conversion(files: ModelFiles, method: Method) -> Conversion:
    """Raises ModelFilesError for a checkpoint that cannot be quantised."""
    folder = Path(files.model_path)
    if files.weight_format != "safetensors":
        raise ModelFilesError(
            f"{folder}: its weights are in the format {files.weight_format}; `engine quantize` reads safetensors with "
            "a config.json",
            code="M304",
        )
    if files.spec.quantization is not None:
        raise ModelFilesError(
            f"{folder}: already quantised ({files.spec.quantization.name}); start from the original checkpoint",
            code="M304",
        )
    if files.implementation != "native":
        raise ModelFilesError(
            f"{folder}: {files.spec.architecture} runs through transformers; the linear layers are known only of "
            "models that the engine runs itself",
            code="M304",
        )
    check_generates(files)
    stored = read_tensors(folder, files.weight_files)
    names = matrices(folder, stored, files.spec, GROUPS[-1] if method == "int4" else 1)
    if not names:
        raise ModelFilesError(f"{folder}: has no matrix that {method} can hold", code="M304")
    group = None
    if method == "int4":
        group = next(size for size in GROUPS if all(stored[name].shape[1] % size == 0 for name in names))
    scale_dtype = getattr(torch, FLOAT_DTYPES[stored[names[0]].dtype])
    return Conversion(folder, stored, frozenset(names), encoder(method, group, scale_dtype))


def convert(conversion: Conversion, target: Path, progress: Callable[[int], None]) -> None:
    """Writes the folder `target`, which is empty or does not exist.

    progress: called with the number of bytes of the source that have been converted since its last call.
    Raises ModelFilesError for weights that cannot be read, OSError if there is no space.
    """
    with new_checkpoint(target, conversion.source, conversion.bytes_after, without=(CONFIG_JSON, INDEX)) as made:
        write(made / WEIGHTS, conversion.layout(), _content(conversion, progress))
        _write_config(conversion, made / CONFIG_JSON)


def _content(conversion: Conversion, progress: Callable[[int], None]) -> Iterator[bytes | memoryview]:
    checkpoint = Checkpoint(conversion.source, conversion.stored)
    for name, tensor in conversion.stored.items():
        if name in conversion.quantised:
            matrix = torch.empty(tensor.shape, dtype=torch.float32)
            checkpoint.read(name, matrix)
            yield from map(bytes_of_tensor, conversion.encoder.parts(matrix).values())
        else:
            yield from bytes_in_file(tensor.file, tensor.offset, tensor.num_bytes)
        progress(tensor.num_bytes)


def _write_config(conversion: Conversion, path: Path) -> None:
    written = read_json(conversion.source / CONFIG_JSON)
    ignored = {
        name.removesuffix(".weight")
        for name, tensor in conversion.stored.items()
        if name.endswith(".weight") and len(tensor.shape) > 1 and name not in conversion.quantised
    }
    written["quantization_config"] = conversion.encoder.config(sorted({*ignored, _OUTPUT}))
    with path.open("wb") as stream:
        stream.write(json.dumps(written, indent=2, ensure_ascii=False).encode() + b"\n")
        to_disk(stream)


def _part(name: str, end: str) -> str:
    return f"{name.removesuffix('.weight')}.{end}"
