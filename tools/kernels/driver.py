"""A device for Triton that compiles and launches nothing, and what the compiler says of each kernel.

With it active, a kernel's own wrapper called with tensors on torch's "meta" device compiles what it would launch: the
shapes, types, divisibility and options are the real ones, and whatever would read a tensor on the host raises.
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

_BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
# Bytes that one program may have: compute capability 8.0, 9.0, 10.0. CUDA C++ Programming Guide, technical
# specifications per compute capability.
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
_NAMES = {80: "NVIDIA A100-SXM4-80GB", 90: "NVIDIA H200", 100: "NVIDIA B200"}  # whose tuned launches are taken
_WIDTHS = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "b128": 16}
_ACCESSES = re.compile(r"\b(ld\.global|st\.global|red\.|atom\.|cp\.async|bra)[^;]*;")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a kernel takes of a multiprocessor, and how its code reads and multiplies."""

    case: str
    kernel: str  # module.function
    architecture: int
    warps: int
    stages: int
    registers: int  # of a thread
    stack_bytes: int  # of a thread: what registers were spilled to
    shared_bytes: int
    products: str  # "wgmma", "mma", "tcgen05" or ""
    load_bytes: tuple[int, ...]  # widths of a thread's reads of global memory, each once, widest first
    store_bytes: tuple[int, ...]
    is_asynchronous: bool  # whether reads go to shared memory past the registers: cp.async
    may_start_early: bool  # before the kernel in front of it has ended
    waits: bool  # for that one's end, on the way of every program
    before_it_waits: tuple[str, ...]  # what it does to global memory before, and whether it branches
    seconds: float  # of compiling


class CompileOnlyDriver:
    """What Triton's runtime asks of a device, answered without one."""

    def __init__(self, architecture: int) -> None:
        self._architecture = architecture
        self._case = threading.local()
        self.utils = self
        self.compiled: list[Compiled] = []

    def __enter__(self) -> CompileOnlyDriver:
        triton.runtime.driver.set_active(self)
        triton.knobs.compilation.listener = self._note
        return self

    def __exit__(self, *_: object) -> None:
        triton.knobs.compilation.listener = None

    def compile(self, name: str, launch: Callable[[], object]) -> None:
        """Whatever `launch` launches; from any thread. name: of the case."""
        self._case.name = name
        launch()

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._architecture, 32)

    def get_current_device(self) -> int:
        return self._architecture  # Triton keeps what it compiled by device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_interface(self) -> CompileOnlyDriver:
        return self

    def get_device_name(self) -> str:
        return _NAMES[self._architecture]

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_BYTES[self._architecture], "multiprocessor_count": 132}

    def launcher_cls(self, source: object, metadata: object) -> Callable[..., None]:
        return lambda *arguments: None

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[None, None, int, int, int]:
        return None, None, 0, 0, 1024

    def _note(
        self, *, src: Any, metadata: dict[str, Any], metadata_group: dict[str, str], times: Any, cache_hit: bool
    ) -> None:
        files = {Path(path).suffix: Path(path) for path in metadata_group.values()}
        registers, stack = _resources(files[".cubin"])
        code = files[".ptx"].read_text()
        early, waits, _ = code.partition("griddepcontrol.wait")
        self.compiled.append(
            Compiled(
                case=self._case.name,
                kernel=src.fn.fn.__module__.rpartition(".")[2] + "." + src.name,
                architecture=self._architecture,
                warps=metadata["num_warps"],
                stages=metadata["num_stages"],
                registers=registers,
                stack_bytes=stack,
                shared_bytes=metadata["shared"],
                products=_products(code),
                load_bytes=_widths(code, "ld.global"),
                store_bytes=_widths(code, "st.global"),
                is_asynchronous="cp.async." in code,
                may_start_early=bool(metadata.get("launch_pdl")),
                waits=bool(waits),
                before_it_waits=tuple(sorted(set(_ACCESSES.findall(early)))) if waits else (),
                seconds=round(times.total / 1e6, 2),
            )
        )


def _resources(binary: Path) -> tuple[int, int]:
    command = [str(_BINARIES / "cuobjdump"), "--dump-resource-usage", str(binary)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


def _products(code: str) -> str:
    if "wgmma.mma_async" in code:
        return "wgmma"
    if "tcgen05.mma" in code:
        return "tcgen05"
    return "mma" if "mma.sync" in code else ""


def _widths(code: str, operation: str) -> tuple[int, ...]:
    """Widths of one thread's accesses, and those of cp.async, which name their bytes."""
    vectors = re.findall(rf"{re.escape(operation)}\S*?(?:\.v(\d))?\.(b\d+)[ \t]", code)
    found = {int(count or 1) * _WIDTHS[kind] for count, kind in vectors}
    if operation == "ld.global":
        found |= {int(each, 16) for each in re.findall(r"cp\.async\.\S+ \[[^\]]*\], \[[^\]]*\], 0x([0-9a-f]+)", code)}
    return tuple(sorted(found, reverse=True))
