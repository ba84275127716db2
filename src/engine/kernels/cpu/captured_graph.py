"""The Capture of a CPU: the native calls of a function, recorded while it runs once, then replayed by one call.

The function is ordinary Python: its ops allocate with torch and call the library. During a capture torch's allocations
come from an arena, so addresses stay the same, and every native call is recorded with its arguments. A function in
which torch itself computes something cannot be captured.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .. import spans
from ..capture import Capture, CapturedGraph, NotCapturable, TooLarge
from .arena import Arena, Lease
from .library import FLOAT, CpuLibrary
from .memory import ResultMemory

_ALLOCATIONS = ("empty", "new_empty", "empty_like")
_LARGER = "activations larger than the arena"
_QUERIES = ("data_ptr", "dim", "element_size", "is_contiguous", "numel", "size", "stride", "untyped_storage", "__len__")


class _Reading(ctypes.Structure):
    """Weights that a call reads: `pieces` consecutive pieces of `piece` bytes. team.h"""

    _fields_ = (("begin", ctypes.c_void_p), ("piece", ctypes.c_int64), ("pieces", ctypes.c_int64))


class _NativeCall(ctypes.Structure):
    """A call as captured_graph.cpp stores it."""

    _fields_ = (("function", ctypes.c_void_p), ("arguments", ctypes.c_void_p), ("next", _Reading))


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    function: int  # address of the <function>_replay
    arguments: tuple[int, ...]  # 8 bytes each
    reading: tuple[int, int, int] | None


class CallRecorder:
    """Records native calls while a capture runs, and only then."""

    def __init__(self) -> None:
        self.calls: list[_Call] | None = None  # None: no capture runs
        self.obstacle = ""  # the first operation that cannot be replayed
        self._reading: tuple[int, int, int] | None = None

    def begin(self) -> None:
        self.calls, self.obstacle, self._reading = [], "", None

    def end(self) -> list[_Call]:
        calls, self.calls = self.calls or [], None
        return calls

    def reject(self, obstacle: str) -> None:
        self.obstacle = self.obstacle or obstacle

    def will_read(self, weight: torch.Tensor, pieces: int) -> None:
        """The next call reads all of a weight, which threads share in `pieces` equal pieces."""
        if self.calls is not None:
            self._reading = weight.data_ptr(), weight.nbytes // pieces, pieces

    def wrap(
        self, name: str, function: Callable[..., Any], replay_address: int | None, arguments: Sequence[Any]
    ) -> Callable[..., Any]:
        """The function, with its calls recorded. replay_address: of <function>_replay, None if there is none."""

        def call(*values: Any) -> Any:
            if self.calls is not None:
                if replay_address is None:
                    self.reject(name)
                else:
                    stored = tuple(_stored(value, kind) for value, kind in zip(values, arguments, strict=True))
                    self.calls.append(_Call(name, replay_address, stored, self._reading))
                    self._reading = None
            if spans.is_profiling:
                with spans.span(name):
                    return function(*values)
            return function(*values)

        return call


class _Results(ResultMemory):
    """Memory of results. torch allocates results of any size during a capture, so that they come from the arena."""

    def __init__(self, recorder: CallRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        is_captured = self._recorder.calls is not None
        return torch.empty(shape, dtype=dtype) if is_captured else super().empty(*shape, dtype=dtype)


def recorded(library: CpuLibrary, recorder: CallRecorder) -> CpuLibrary:
    """The library for one kernel set, with its calls and results visible to the recorder."""
    return replace(library, wrapper=recorder, memory=_Results(recorder))


def _stored(value: float | None, kind: Any) -> int:
    """An argument in the 8 bytes from which captured_graph.h reads it."""
    if kind is FLOAT:
        return int.from_bytes(struct.pack("<f", value), "little")
    return int(value or 0) & 0xFFFF_FFFF_FFFF_FFFF


class _Intercept(TorchFunctionMode):
    """Serves torch's allocations from the lease and rejects what torch computes itself.

    Sees calls from Python only, which is where models are written: a mode below Python would load half a second of
    modules.
    """

    def __init__(self, lease: Lease, recorder: CallRecorder) -> None:
        super().__init__()
        self._lease = lease
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.__name__
        if name in _ALLOCATIONS:
            if result.device.type == "cpu" and result.is_contiguous():
                placed = self._lease.empty(result.shape, result.dtype)
                if placed is not None:
                    return placed
            self._recorder.reject(_LARGER)
        elif not (name in _QUERIES or _is_view(name, result, args)):
            self._recorder.reject(f"torch's {name}")
        return result


def _is_view(name: str, result: Any, args: Sequence[Any]) -> bool:
    """Whether a call returned an attribute, such as shape, or views of its first argument."""
    results = result if isinstance(result, list | tuple) else (result,)
    writes = name.endswith("_") and not name.endswith("__")  # torch's names of functions that write into a tensor
    if writes or not all(isinstance(each, torch.Tensor) for each in results):
        return name == "__get__"
    return bool(args) and _share_memory(results, args[0])


def _share_memory(results: Sequence[torch.Tensor], source: Any) -> bool:
    return isinstance(source, torch.Tensor) and all(
        each.untyped_storage().data_ptr() == source.untyped_storage().data_ptr() for each in results
    )


def native_capture(library: CpuLibrary, recorder: CallRecorder) -> Capture:
    """The Capture of a kernel set whose library is `recorded`. All its graphs share one arena."""
    replay_graph = library.function("replay_graph", [ctypes.c_void_p, ctypes.c_int], ctypes.c_int)
    arenas: list[Arena] = []  # reserved at the first capture

    def capture(compute: Callable[[], Any]) -> CapturedGraph:
        if not arenas:
            try:
                arenas.append(Arena())
            except OSError as error:
                raise NotCapturable(f"no memory can be reserved: {error.strerror}") from error
        recorder.begin()
        try:
            with _Intercept(arenas[0].lease(), recorder):
                output = compute()
        finally:
            calls = recorder.end()
        if recorder.obstacle:
            kind = TooLarge if recorder.obstacle == _LARGER else NotCapturable
            raise kind(f"{recorder.obstacle} cannot be replayed", output)
        return CapturedGraph(output, _replay_of(calls, replay_graph))

    return capture


def _replay_of(calls: list[_Call], replay_graph: Callable[[int, int], int]) -> Callable[[], None]:
    all_arguments = [argument for call in calls for argument in call.arguments]
    arguments = (ctypes.c_uint64 * len(all_arguments))(*all_arguments)
    table = (_NativeCall * len(calls))()
    address = ctypes.addressof(arguments)
    for entry, call, next_reading in zip(table, calls, _next_readings(calls), strict=True):
        entry.function, entry.arguments = call.function, address
        address += 8 * len(call.arguments)
        if next_reading is not None:
            entry.next = _Reading(*next_reading)
    kept = (table, arguments)  # the closure keeps both alive, and not the calls, which are twice as large
    names = [call.name for call in calls]

    def replay() -> None:
        failed = replay_graph(ctypes.addressof(kept[0]), len(table))
        if failed:
            raise RuntimeError(f"{names[failed - 1]} failed in a captured graph")

    return replay


def _next_readings(calls: Sequence[_Call]) -> list[tuple[int, int, int] | None]:
    """The weights that are read next after each call, by whichever call reads some: they can be prefetched."""
    readings: list[tuple[int, int, int] | None] = []
    later: tuple[int, int, int] | None = None
    for call in reversed(calls):
        readings.append(later)
        later = call.reading or later
    return readings[::-1]
