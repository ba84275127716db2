"""`make wheel`: the wheel, built from the sdist as an installer would, holds exactly what src/ holds.

A packaging mistake does not show in an editable install; this is where it shows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def in_tree() -> set[str]:
    files = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {f"stoker/{name.removeprefix('src/')}" for name in files.split("\n") if name}


def in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        # without a format named, `build` makes the sdist and then the wheel out of it
        subprocess.run([sys.executable, "-m", "build", "--outdir", folder, str(ROOT)], check=True, capture_output=True)
        (wheel,) = Path(folder).glob("*.whl")
        tree, packed = in_tree(), in_wheel(wheel)
        size = wheel.stat().st_size
    for name in sorted(tree - packed):
        print(f"missing from the wheel: {name}")
    for name in sorted(packed - tree):
        print(f"in the wheel but not in src/: {name}")
    if tree == packed:
        print(f"the wheel holds the {len(tree)} files of src/, {size / 2**20:.1f} MiB")
    return int(tree != packed)


if __name__ == "__main__":
    sys.exit(main())
