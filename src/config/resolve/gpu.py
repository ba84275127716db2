"""The GPU that this process would compute on, asked of NVIDIA's driver library (NVML). No torch, no CUDA context.

Which one it is follows CUDA_VISIBLE_DEVICES as CUDA reads it. NVML numbers GPUs by their bus, CUDA the fastest first
unless CUDA_DEVICE_ORDER=PCI_BUS_ID says otherwise: where they differ, a UUID names the same GPU to both.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from ctypes import byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Any

from .machine_spec import GpuSpec

VISIBLE = "CUDA_VISIBLE_DEVICES"
LIBRARY = "libnvidia-ml.so.1"
_TRUE = ("1", "true", "yes", "on", "y")  # as Triton reads its variables
_MEMORY_V2 = 2 << 24 | 40  # version and size of the second version of the record, which reports the driver's share


class NoGpu(Exception):
    """This process can use no GPU; the message says what was looked for."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _MemoryV2(ctypes.Structure):
    _fields_ = (
        *(("version", c_uint), ("total", c_ulonglong), ("reserved", c_ulonglong)),
        *(("free", c_ulonglong), ("used", c_ulonglong)),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """One GPU now, with all processes that use it."""

    gpu: str  # as CUDA_VISIBLE_DEVICES names it
    utilization: float | None  # share of the time in which a kernel ran, 0 to 1; None: not reported, as of a MIG part
    used_bytes: int
    total_bytes: int  # usable by programs


class GpuMonitor:
    """Reads the usage of the first GPUs that CUDA would show to this process. NVML stays open."""

    def __init__(
        self,
        num_gpus: int,
        env: Mapping[str, str] = os.environ,
        open_library: Callable[[str], Any] = ctypes.CDLL,
    ) -> None:
        """Raises NoGpu."""
        try:
            self._library = open_library(LIBRARY)
            _check(self._library.nvmlInit_v2(), "starting it")
            named = visible_gpus(env)
            if named is None:
                named = [str(number) for number in range(_count(self._library))]
            shown = [name for name in named[:num_gpus] if name and not name.startswith("-")]
            self._handles = {name: _handle(self._library, name) for name in shown}
        except (OSError, AttributeError) as error:
            raise NoGpu(f"{LIBRARY} is not there, or too old: {error}") from None

    def read(self) -> list[GpuUsage]:
        """The usage of each GPU. GPUs that do not answer are left out."""
        found = []
        for name, handle in self._handles.items():
            try:
                total, free = _memory(self._library, handle)
            except NoGpu:
                continue
            found.append(GpuUsage(name, self._utilization(handle), total - min(free, total), total))
        return found

    def _utilization(self, handle: c_void_p) -> float | None:
        rates = _Utilization()
        code = self._library.nvmlDeviceGetUtilizationRates(handle, byref(rates))
        return None if code else rates.gpu / 100


def is_interpreting(env: Mapping[str, str] = os.environ) -> bool:
    """Whether Triton's kernels are interpreted on the CPU, as TRITON_INTERPRET says."""
    return env.get("TRITON_INTERPRET", "").lower() in _TRUE


def interpreted_gpu(total_memory_bytes: int, available_memory_bytes: int) -> GpuSpec:
    """The substitute for a GPU where kernels are interpreted: for tests and experiments, never chosen by `auto`."""
    return GpuSpec(
        name="Triton's interpreter on this CPU",
        total_memory_bytes=total_memory_bytes,
        available_memory_bytes=available_memory_bytes,
        compute_capability=(0, 0),
        is_interpreted=True,
    )


def read_gpu(
    env: Mapping[str, str] = os.environ,
    open_library: Callable[[str], Any] = ctypes.CDLL,
    torch_version: str | None = None,
) -> GpuSpec:
    """The first GPU that CUDA would show to this process. Raises NoGpu.

    Args:
        open_library: opens a shared library by its name.
        torch_version: of the torch that would compute; None for the installed one.
    """
    visible = env.get(VISIBLE)
    named = visible_gpus(env)
    first = named[0] if named else "0"
    if not first or first.startswith("-"):
        raise NoGpu(f"CUDA_VISIBLE_DEVICES is `{visible}`, which hides every GPU")
    try:
        library = open_library(LIBRARY)
    except OSError:
        raise NoGpu(f"NVIDIA's driver library {LIBRARY} is not there") from None
    try:
        gpu = _ask(library, first, None if named is None else len(named))
    except AttributeError as error:
        raise NoGpu(f"{LIBRARY} is too old: {error}") from None
    version = torch_version or _installed_torch()
    if version.endswith("+cpu"):
        raise NoGpu(f"there is an {gpu.name}, but the installed torch ({version}) is a build for CPUs")
    return gpu


def visible_gpus(env: Mapping[str, str] = os.environ) -> list[str] | None:
    """The entries of CUDA_VISIBLE_DEVICES, numbers or UUIDs, up to the first that hides those after it; None: all."""
    visible = env.get(VISIBLE)
    if visible is None:
        return None
    entries = [entry.strip() for entry in visible.split(",")]
    ends = [index for index, entry in enumerate(entries) if not entry or entry.startswith("-")]
    return entries[: ends[0] or 1] if ends else entries


def own_gpus(index: int, count: int = 1) -> dict[str, str]:
    """Variables by which a process that is started has `count` of the GPUs of this one, from number `index` on."""
    named = visible_gpus()
    numbers = range(index, index + count)
    return {VISIBLE: ",".join(str(number) if named is None else named[number] for number in numbers)}


def _installed_torch() -> str:
    import importlib.metadata  # the slowest part, reached only on machines with a GPU

    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""  # the start says what is missing


def _ask(library: Any, first: str, num_visible: int | None) -> GpuSpec:
    """
    first: the first entry of CUDA_VISIBLE_DEVICES, a number or the beginning of a UUID.
    num_visible: entries in it; None is every GPU.
    """
    _check(library.nvmlInit_v2(), "starting it")
    try:
        handle = _handle(library, first)
        major, minor = c_int(), c_int()
        _check(
            library.nvmlDeviceGetCudaComputeCapability(handle, byref(major), byref(minor)), "asking what it computes"
        )
        total, free = _memory(library, handle)
        return GpuSpec(
            name=_text(library.nvmlDeviceGetName, handle),
            total_memory_bytes=total,
            available_memory_bytes=min(free, total),
            compute_capability=(major.value, minor.value),
            num_visible=_count(library) if num_visible is None else num_visible,
        )
    finally:
        library.nvmlShutdown()


def _handle(library: Any, name: str) -> c_void_p:
    """name: an entry of CUDA_VISIBLE_DEVICES."""
    return _by_number(library, int(name)) if name.isdecimal() else _by_uuid(library, name)


def _by_number(library: Any, number: int) -> c_void_p:
    handle = c_void_p()
    code = library.nvmlDeviceGetHandleByIndex_v2(c_uint(number), byref(handle))
    _check(code, f"looking for GPU {number}")
    return handle


def _by_uuid(library: Any, beginning: str) -> c_void_p:
    """Find a GPU as CUDA does: by a prefix of a UUID that identifies one GPU, or the complete UUID of a MIG part."""
    if beginning.startswith("MIG-"):
        handle = c_void_p()
        code = library.nvmlDeviceGetHandleByUUID(c_char_p(beginning.encode()), byref(handle))
        _check(code, f"looking for {beginning}")
        return handle
    count = _count(library)
    for number in range(count):
        handle = _by_number(library, number)
        if _text(library.nvmlDeviceGetUUID, handle).startswith(beginning):
            return handle
    raise NoGpu(f"of {count} GPUs none is the {beginning} that CUDA_VISIBLE_DEVICES names")


def _count(library: Any) -> int:
    count = c_uint()
    _check(library.nvmlDeviceGetCount_v2(byref(count)), "counting GPUs")
    return count.value


def _memory(library: Any, handle: c_void_p) -> tuple[int, int]:
    """Total and free bytes; the total does not include the driver's share, which programs cannot use."""
    newer = _MemoryV2(version=_MEMORY_V2)
    if hasattr(library, "nvmlDeviceGetMemoryInfo_v2") and not library.nvmlDeviceGetMemoryInfo_v2(handle, byref(newer)):
        return newer.total - newer.reserved, newer.free
    memory = _Memory()
    _check(library.nvmlDeviceGetMemoryInfo(handle, byref(memory)), "asking for its memory")
    return memory.total, memory.free


def _text(function: Any, handle: c_void_p) -> str:
    buffer = ctypes.create_string_buffer(96)
    _check(function(handle, buffer, c_uint(len(buffer))), "asking for its name")
    return buffer.value.decode(errors="replace")


def _check(code: int, doing: str) -> None:
    """Check a result of NVML, whose functions return 0 or an error code."""
    if code:
        raise NoGpu(f"NVIDIA's driver answers {doing} with error {code}{_ERRORS.get(code, '')}")


_ERRORS = {
    2: " (no such GPU)",
    3: " (not supported by this GPU)",
    4: " (no rights)",
    6: " (not found)",
    9: " (the driver is not loaded)",
    12: " (library not found)",
    15: " (the GPU is lost)",
    18: " (driver and library are of different versions)",
}
