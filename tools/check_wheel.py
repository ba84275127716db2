"""`make wheel`: the wheel, built from the sdist as an installer does, contains src/ and compiled kernels, nothing else.

An editable install does not show a packaging mistake; this does. Kernels are compiled for this machine only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from stoker.config.cpu_features import NoKernels, choose_level, find_compiler, this_cpu
from stoker.engine.kernels.cpu.build import specs_of

ROOT = Path(__file__).parent.parent
PREBUILT = "stoker/engine/kernels/cpu/prebuilt"


def in_tree() -> set[str]:
    files = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {f"stoker/{name.removeprefix('src/')}" for name in files.split("\n") if name}


def libraries(levels: Iterable[str]) -> set[str]:
    return {f"{PREBUILT}/{spec.file_name}" for spec in specs_of(levels, has_quantised=True)}


def in_wheel(wheel: Path) -> dict[str, int]:
    """Paths and compressed sizes."""
    with zipfile.ZipFile(wheel) as archive:
        return {each.filename: each.compress_size for each in archive.infolist() if ".dist-info/" not in each.filename}


def differences(wheel: Path, levels: Iterable[str]) -> list[str]:
    """What is missing from the wheel, and what it contains that it should not."""
    expected, packed = in_tree() | libraries(levels), set(in_wheel(wheel))
    return [
        *(f"missing from the wheel: {name}" for name in sorted(expected - packed)),
        *(f"only in the wheel: {name}" for name in sorted(packed - expected)),
    ]


def build(folder: str | Path, kernels: str) -> Path:
    """Builds the sdist, and the wheel from it."""
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, env=os.environ | {"STOKER_BUILD_KERNELS": kernels}, stdout=subprocess.DEVNULL)
    return max(Path(folder).glob("*.whl"), key=lambda path: path.stat().st_mtime)


def main() -> int:
    try:
        find_compiler()
        levels = [choose_level("auto", this_cpu())[0].name]
    except NoKernels as error:
        print(f"the wheel is checked without kernels: {error}")
        levels = []
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(folder, "this-machine" if levels else "none")
        problems, size = differences(wheel, levels), wheel.stat().st_size
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{wheel.name}: the {len(in_tree())} files of src/, kernels for {levels}, {size / 2**20:.1f} MiB")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
