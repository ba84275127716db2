"""Measures peak read bandwidth and arithmetic speed, from which floors (lower bounds of times) are computed."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import torch

from stoker.config.cpu_features import choose_level, this_cpu, wanted_level
from stoker.config.cpu_library import LibrarySpec
from stoker.engine.kernels.cpu.library import load_library

_READ_FLOATS = 2**27  # 512 MiB: much larger than the caches
_MULTIPLY_ROUNDS = 2000


class Floors:
    """Peak speeds with all threads that torch uses. dtypes: the types to measure multiplication for."""

    def __init__(self, dtypes: tuple[torch.dtype, ...], rounds: int = 6, features: str | None = None) -> None:
        library = load_library(LibrarySpec(choose_level(features or wanted_level(), this_cpu())[0]))
        library.handle.set_num_threads(torch.get_num_threads())
        read_all = library.function("read_all", [ctypes.c_void_p, ctypes.c_int64], ctypes.c_float)
        advise_huge_pages = library.function("advise_huge_pages", [ctypes.c_void_p, ctypes.c_int64])
        memory = torch.empty(_READ_FLOATS, dtype=torch.float32)
        advise_huge_pages(memory.data_ptr(), memory.nbytes)
        memory.fill_(1)
        self.bytes_per_second = memory.nbytes / _best(lambda: read_all(memory.data_ptr(), memory.numel()), rounds)
        self.flops_per_second: dict[torch.dtype, float] = {}
        for dtype in dtypes:
            multiply_all = library.op("multiply_all", dtype, [ctypes.c_int64], ctypes.c_int64)
            flops = multiply_all(_MULTIPLY_ROUNDS) * torch.get_num_threads()
            seconds = _best(lambda: multiply_all(_MULTIPLY_ROUNDS), rounds)  # noqa: B023 (called before the next iteration)
            self.flops_per_second[dtype] = flops / seconds

    def seconds(self, num_bytes: float, flops: float, dtype: torch.dtype) -> float:
        """Lower bound: the longer of reading `num_bytes` and computing `flops` operations."""
        return max(num_bytes / self.bytes_per_second, flops / self.flops_per_second[dtype])

    def __str__(self) -> str:
        speeds = [f"{dtype} at {speed / 1e9:.0f} GFLOP/s" for dtype, speed in self.flops_per_second.items()]
        return f"memory read at {self.bytes_per_second / 1e9:.1f} GB/s, multiplied: {', '.join(speeds)}"


def _best(run: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)
