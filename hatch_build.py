"""Build hook of the wheel: compiles the C++ kernels and packs them, so that no machine that installs it has to compile.

STOKER_BUILD_KERNELS says what is compiled: `none` (the default for a wheel), `all` levels (a release), or
`this-machine` (the default for an editable install, compiled into the source tree). A build does not know which extras
are installed, and without the extra `engine` no kernel is used. So a wheel contains none unless that is asked for, and
the first start compiles what its deployment uses. Without a compiler the wheel is built without kernels, and a line
says so. pip shows the output of a build only with -v: progress is also written to the terminal, if there is one.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "STOKER_BUILD_KERNELS"
ALLOWED = ("all", "this-machine", "none")
PACKED = "stoker/engine/kernels/cpu/prebuilt"


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get(VARIABLE) or ("this-machine" if version == "editable" else "none")
        if wanted not in ALLOWED:
            raise ValueError(f"{VARIABLE} is {wanted!r}; allowed: {', '.join(ALLOWED)}")
        if wanted == "none":
            return _tell("no C++ kernels in this build: the first start compiles what it uses")
        build = import_build(Path(self.root))
        try:
            build.find_compiler()
            if version == "editable":
                build.compile_here(_tell, build.SOURCES / "prebuilt")
                return None
            libraries = self._compile(build, wanted)
        except build.NoKernels as error:
            return _tell(f"no C++ kernels: {error}; where this wheel is installed, the first start compiles them")
        build_data["force_include"].update({str(path): f"{PACKED}/{path.name}" for path in libraries})
        build_data["pure_python"] = False
        # No Python version: the libraries are loaded by ctypes, and do not use the interpreter.
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        return None

    def _compile(self, build: ModuleType, wanted: str) -> list[Path]:
        """The libraries of one level after the other: an older compiler does not know the flags of the newest."""
        machine = build.this_cpu().machine
        if sys.platform != "linux" or machine != "x86_64":
            raise build.NoKernels(f"there are no kernels for {sys.platform} on {machine} processors")
        levels = list(build.LEVELS)
        if wanted == "this-machine":
            levels = [build.choose_level("auto", build.this_cpu())[0].name]
        folder = Path(self.root, "build", "kernels")
        folder.mkdir(parents=True, exist_ok=True)
        made: list[Path] = []
        began = time.monotonic()
        for number, level in enumerate(levels, 1):
            specs = build.specs_of([level], has_quantised=True)
            head = f"C++ kernels, level {number} of {len(levels)} ({level})"
            missing = [spec for spec in specs if not (folder / spec.file_name).exists()]  # an earlier build was ended
            try:
                if missing:
                    build.compile_libraries(missing, folder, lambda progress, head=head: _tell(f"{head}: {progress}"))
            except build.NoKernels as error:
                _tell(f"{head}: left out: {error}")
            else:
                made += [folder / spec.file_name for spec in specs]
        if not made:
            raise build.NoKernels("the compiler could compile none of the levels")
        _tell(f"C++ kernels: {len(made)} libraries in {time.monotonic() - began:.0f} s")
        return made


def import_build(root: Path) -> ModuleType:
    """engine/kernels/cpu/build.py without its parent packages, whose dependencies are not installed during a build."""
    for name in ("stoker", "stoker.config", "stoker.engine", "stoker.engine.kernels", "stoker.engine.kernels.cpu"):
        package = ModuleType(name)
        package.__path__ = [str(root.joinpath("src", *name.split(".")[1:]))]
        sys.modules[name] = package
    return importlib.import_module("stoker.engine.kernels.cpu.build")


def _tell(line: str) -> None:
    print(f"stoker: {line}", file=sys.stderr, flush=True)
    if not sys.stderr.isatty():
        try:
            with open("/dev/tty", "w") as terminal:
                terminal.write(f"\r\033[Kstoker: {line}\n")
        except OSError:
            pass  # no terminal
