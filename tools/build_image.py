"""`make image`: builds docker/KIND.Dockerfile with the first container builder that works on this machine.

Needs no installed package: it runs before, or without, `make install`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILDERS = ("docker", "podman", "buildah")
KINDS = {"cpu": "", "cuda": "-cuda"}  # and the end of the image's tag, as `engine render` writes it


def version() -> str:
    found = re.search(r'__version__ = "([^"]+)"', (ROOT / "src/version.py").read_text())
    assert found is not None, "src/version.py sets __version__"
    return found[1]


def find_builder() -> str:
    """Raises LookupError with what is missing."""
    reasons = []
    for name in BUILDERS:
        if shutil.which(name) is None:
            reasons.append(f"{name}: not installed")
            continue
        done = subprocess.run([name, "info"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return name
        lines = done.stderr.strip().splitlines()
        reasons.append(f"{name}: {lines[-1] if lines else 'does not work'}")
    raise LookupError("\n".join(reasons))


def command(builder: str, kind: str, more: Sequence[str]) -> list[str]:
    file, tag = f"docker/{kind}.Dockerfile", f"stoker:{version()}{KINDS[kind]}"
    return [builder, "build", "--file", file, "--tag", tag, *more, "."]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.build_image", description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parsed, more = parser.parse_known_args()
    try:
        builder = find_builder()
    except LookupError as error:
        print(f"error: no container builder works on this machine\n{error}", file=sys.stderr)
        return 4
    return subprocess.run(command(builder, parsed.kind, more), cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
