"""Programs: the native calls of a function, noted while it runs once, then made again by one call (program.cpp).

The function is written as if nobody looked: its ops allocate with torch and call the library. While it is captured,
torch's allocations are served from an arena, whose addresses stay, and every call is noted with its arguments. Whatever
else torch computes cannot be noted, so a function that has it computed is not replayed.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..capture import Captured
from .arena import Arena, Lease
from .library import FLOAT, CpuLibrary
from .memory import ResultMemory

_ALLOCATIONS = ("empty", "new_empty", "empty_like")
_FACTS = ("data_ptr", "dim", "element_size", "is_contiguous", "numel", "size", "stride", "untyped_storage", "__len__")


class _Reading(ctypes.Structure):
    """Weights that will be read: `pieces` behind each other, of `piece` bytes. team.h"""

    _fields_ = (("begin", ctypes.c_void_p), ("piece", ctypes.c_int64), ("pieces", ctypes.c_int64))


class _Call(ctypes.Structure):
    """program.cpp"""

    _fields_ = (("function", ctypes.c_void_p), ("words", ctypes.c_void_p), ("next", _Reading))


@dataclass(frozen=True, slots=True)
class _Noted:
    name: str
    function: int  # address of the one that takes words
    words: tuple[int, ...]
    reading: tuple[int, int, int] | None


class Recorder:
    """Notes native calls while a capture goes on, and is passed by at all other times."""

    def __init__(self) -> None:
        self.calls: list[_Noted] | None = None  # None: nothing is captured
        self.obstacle = ""  # the first thing that cannot be replayed
        self._reading: tuple[int, int, int] | None = None

    def begin(self) -> None:
        self.calls, self.obstacle, self._reading = [], "", None

    def end(self) -> list[_Noted]:
        calls, self.calls = self.calls or [], None
        return calls

    def refuse(self, obstacle: str) -> None:
        self.obstacle = self.obstacle or obstacle

    def will_read(self, weight: torch.Tensor, pieces: int) -> None:
        """The next call reads all of a weight, which is cut between threads in so many equal pieces."""
        if self.calls is not None:
            self._reading = weight.data_ptr(), weight.nbytes // pieces, pieces

    def watch(
        self, name: str, function: Callable[..., Any], with_words: int | None, arguments: Sequence[Any]
    ) -> Callable[..., Any]:
        """The function, noted when it is called. with_words: address of its twin that takes words."""

        def call(*values: Any) -> Any:
            if self.calls is not None:
                if with_words is None:
                    self.refuse(name)
                else:
                    words = tuple(_word(value, kind) for value, kind in zip(values, arguments, strict=True))
                    self.calls.append(_Noted(name, with_words, words, self._reading))
                    self._reading = None
            return function(*values)

        return call


class _Results(ResultMemory):
    """While a capture goes on, results of any size are torch's to allocate, and so the arena's."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        is_noted = self._recorder.calls is not None
        return torch.empty(shape, dtype=dtype) if is_noted else super().empty(*shape, dtype=dtype)


def watched(library: CpuLibrary, recorder: Recorder) -> CpuLibrary:
    """The library for one kernel set, whose calls and results the recorder sees."""
    return replace(library, watcher=recorder, memory=_Results(recorder))


def _word(value: float | None, kind: Any) -> int:
    """An argument as program.h takes it out of its word."""
    if kind is FLOAT:
        return int.from_bytes(struct.pack("<f", value), "little")
    return int(value or 0) & 0xFFFF_FFFF_FFFF_FFFF


class _Watch(TorchFunctionMode):
    """Serves torch's allocations from the lease and looks out for what torch computes itself.

    Of calls from Python, which is where models are written: a mode below Python would load half a second of modules.
    """

    def __init__(self, lease: Lease, recorder: Recorder) -> None:
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
            self._recorder.refuse("no room for activations")
        elif not (name in _FACTS or _is_view(name, result, args)):
            self._recorder.refuse(f"torch's {name}")
        return result


def _is_view(name: str, result: Any, args: Sequence[Any]) -> bool:
    """Whether a call made other tensors of the same numbers. Names of what writes into a tensor end in one `_`."""
    results = result if isinstance(result, list | tuple) else (result,)
    if (name.endswith("_") and not name.endswith("__")) or not all(isinstance(each, torch.Tensor) for each in results):
        return name == "__get__"  # an attribute that is no tensor, as shape
    return bool(args) and _share_memory(results, args[0])


def _share_memory(results: Sequence[torch.Tensor], source: Any) -> bool:
    return isinstance(source, torch.Tensor) and all(
        each.untyped_storage().data_ptr() == source.untyped_storage().data_ptr() for each in results
    )


def capture_programs(library: CpuLibrary, recorder: Recorder) -> Callable[[Callable[[], torch.Tensor]], Captured]:
    """The capture of a kernel set that is made of a `watched` library. Its programs share one arena."""
    run = library.function("run_program", [ctypes.c_void_p, ctypes.c_int], ctypes.c_int)
    arenas: list[Arena] = []  # made when it is first needed

    def capture(compute: Callable[[], torch.Tensor]) -> Captured:
        if not arenas:
            try:
                arenas.append(Arena())
            except OSError as error:
                return Captured(compute(), None, f"no memory can be reserved: {error.strerror}")
        recorder.begin()
        try:
            with _Watch(arenas[0].lease(), recorder):
                output = compute()
        finally:
            calls = recorder.end()
        if recorder.obstacle:
            return Captured(output, None, f"{recorder.obstacle} cannot be replayed")
        return Captured(output, _program(calls, run))

    return capture


def _program(calls: list[_Noted], run: Callable[[int, int], int]) -> Callable[[], None]:
    words = (ctypes.c_uint64 * sum(len(call.words) for call in calls))(*(word for call in calls for word in call.words))
    table = (_Call * len(calls))()
    at = ctypes.addressof(words) + ctypes.sizeof(words)
    reading: tuple[int, int, int] | None = None
    for entry, call in zip(reversed(table), reversed(calls), strict=True):
        at -= 8 * len(call.words)
        entry.function, entry.words = call.function, at
        if reading is not None:
            entry.next = _Reading(*reading)
        reading = call.reading or reading
    kept = (table, words)  # as long as the program can be run

    def replay() -> None:
        failed = run(ctypes.addressof(kept[0]), len(table))
        if failed:
            raise RuntimeError(f"{calls[failed - 1].name} failed in a program")

    return replay
