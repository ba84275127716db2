"""`make wheel`: the wheel, built from the sdist as an installer does, contains src/ and compiled kernels, nothing else.

The wheels of packages/ contain their modules. An editable install does not show a packaging mistake; this does. Kernels
are compiled for this machine only.
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
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
PREBUILT = "stoker/engine/kernels/cpu/prebuilt"


def tracked(folder: str) -> set[str]:
    """Files of a folder, as paths in it."""
    found = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name.removeprefix(f"{folder}/") for name in found.split("\n") if name}


def in_tree() -> set[str]:
    return {f"stoker/{name}" for name in tracked("src")}


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


def build_package(package: Path, folder: str | Path) -> Path:
    """Builds the wheel of a folder of packages/, with the version of this tree."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(package)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = Path(folder).glob(f"{package.name.replace('-', '_')}-*.whl")
    return wheel


def package_problems(folder: str | Path) -> list[str]:
    """See differences, for the wheels of packages/."""
    found = []
    for package in PACKAGES:
        expected = tracked(str(package.relative_to(ROOT))) - {"pyproject.toml"}
        odd = expected ^ set(in_wheel(build_package(package, folder)))
        found += [f"only in the wheel of {package.name}, or missing there: {name}" for name in sorted(odd)]
    return found


def main() -> int:
    try:
        find_compiler()
        levels = [choose_level("auto", this_cpu())[0].name]
    except NoKernels as error:
        print(f"the wheel is checked without kernels: {error}")
        levels = []
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(folder, "this-machine" if levels else "none")
        problems = [*differences(wheel, levels), *package_problems(folder)]
        size = wheel.stat().st_size
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{wheel.name}: the {len(in_tree())} files of src/, kernels for {levels}, {size / 2**20:.1f} MiB")
        print(f"beside it: {', '.join(package.name for package in PACKAGES)}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
