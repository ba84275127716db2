"""`python -m stoker.engine.kernels.cpu`: compiles the C++ kernels for this machine into the package."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from ....config.cpu_features import NoKernels
from ....config.cpu_library import PREBUILT
from .build import compile_here


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m stoker.engine.kernels.cpu",
        description="Compile the C++ kernels for this machine into the package, so that no start has to.",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="also those for quantised weights and `model.batch_invariant`; without it, only what a deployment uses "
        "that sets neither",
    )
    has_all = parser.parse_args(words).all
    began = time.monotonic()
    try:
        made = compile_here(_tell, PREBUILT, has_all=has_all)
    except ValueError as error:  # STOKER_CPU_FEATURES
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (NoKernels, OSError) as error:
        print(f"no C++ kernels: {error}; torch is used instead, which is slower", file=sys.stderr)
        return 0
    for path in made:
        print(f"{path.name}: {path.stat().st_size / 2**20:.1f} MiB", file=sys.stderr)
    if made:
        print(f"compiled in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
