"""Selects which tensors of a checkpoint are quantised: the matrices of its linear layers, under whatever names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..config.checkpoint.match import tensors_of
from ..config.checkpoint.stored import StoredTensor
from ..model.spec import ModelSpec
from ..model.tensors import model_tensors


def matrices(folder: Path, stored: Mapping[str, StoredTensor], spec: ModelSpec, multiple: int) -> list[str]:
    """Names in the files, in their order. A matrix may be several of the model's, one below the other.

    Left out are matrices whose inputs are not a multiple of `multiple`, which are stored transposed, or with all
    experts in one tensor. Raises ModelFilesError unless the files have the tensors of the model.
    """
    linear = {
        tensor.name.replace("{}", str(copy))
        for tensor in model_tensors(spec)
        if tensor.is_matrix
        for copy in range(tensor.copies)
    }
    parts: dict[tuple[Path, int], bool] = {}  # where each tensor of the model starts
    for name, tensor in tensors_of(folder, stored, spec).items():
        if tensor.strides is None:
            parts[tensor.file, tensor.offset] = name in linear
    return [
        name
        for name, tensor in stored.items()
        if name.endswith(".weight")
        and len(tensor.shape) == 2
        and tensor.shape[1] % multiple == 0
        and parts.get((tensor.file, tensor.offset), False)
    ]
