"""`make release`: the wheel with the kernels of every level, tagged for the oldest glibc that has all symbols it needs.

The tag is auditwheel's verdict over the compiled libraries. They link to libc, libm, libstdc++ and libgcc only; OpenMP
is the runtime that torch has loaded. Built on an older distribution, the wheel runs on older ones: the symbols decide,
not the tag.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from stoker.config.cpu_features import LEVELS

from .check_wheel import PACKAGES, PREBUILT, ROOT, build, build_package, differences, in_wheel


def tagged(wheel: Path) -> Path:
    """The same wheel with the tag that auditwheel finds for its libraries."""
    show = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    shown = " ".join(subprocess.run(show, check=True, capture_output=True, text=True).stdout.split())
    found = re.search(r'consistent with the following platform tag: "(manylinux_\w+)"', shown)
    if found is None:
        raise SystemExit(f"{wheel.name}: its libraries fit no manylinux tag: {shown}")
    tags = [sys.executable, "-m", "wheel", "tags", "--platform-tag", found[1], "--remove", str(wheel)]
    done = subprocess.run(tags, check=True, capture_output=True, text=True)
    return wheel.parent / done.stdout.split()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.build_wheel", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheel and the sdist")
    out = parser.parse_args().out
    wheel = build(out, "all")
    if problems := differences(wheel, LEVELS):
        print("\n".join(problems))
        return 1
    wheel = tagged(wheel)
    for name, size in sorted(in_wheel(wheel).items()):
        if name.startswith(PREBUILT):
            print(f"{name.removeprefix(PREBUILT + '/'):<60} {size / 2**10:8.0f} KiB")
    for each in (wheel, *(build_package(package, out) for package in PACKAGES)):
        print(f"{each}: {each.stat().st_size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
