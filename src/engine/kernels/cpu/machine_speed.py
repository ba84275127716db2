"""What this machine can do at most, measured by the library: the reference of a self-test and of benchmarks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .library import INT64, POINTER, CpuLibrary

_OPERATIONS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int8: "int8"}


@dataclass(frozen=True, slots=True)
class MachineSpeed:
    read: Callable[[torch.Tensor], object]  # reads a tensor once, with all threads
    multiply: Callable[[int], int]  # takes a number of rounds; returns the operations of one thread
    unit: str  # what multiplies: "tiles" or "vectors"


def machine_speed(library: CpuLibrary, dtype: torch.dtype) -> MachineSpeed:
    """dtype: of the factors; int8 needs a library with quantised kernels."""
    read_all = library.function("read_all", [POINTER, INT64], ctypes.c_float)
    unit = "tiles" if hasattr(library.handle, f"multiply_tiles_{_OPERATIONS[dtype]}") else "vectors"
    name = f"multiply_{'tiles' if unit == 'tiles' else 'all'}_{_OPERATIONS[dtype]}"
    multiply = library.function(name, [INT64], INT64)
    return MachineSpeed(lambda tensor: read_all(tensor.data_ptr(), tensor.nbytes // 4), multiply, unit)
