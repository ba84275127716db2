"""`make kernels`: compiles every GPU kernel without a GPU, and shows the registers and shared memory of each.

Triton's interpreter, in which tests run the kernels without a GPU, accepts code that the compiler refuses: variables
whose type differs between branches, programs that need more shared memory than a GPU has.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import triton

from .cases import Cases, full, quick
from .driver import SHARED_BYTES, Compiled, CompileOnlyDriver


def compile_all(cases: Cases, architecture: int) -> tuple[list[Compiled], dict[str, str]]:
    """The compiled kernels, and by case the errors of the others."""
    errors: dict[str, str] = {}
    with CompileOnlyDriver(architecture) as driver, ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting = [(name, pool.submit(driver.compile, name, launch)) for name, launch in cases]
        for name, future in waiting:
            if error := future.exception():
                errors[name] = f"{type(error).__name__}: {error}"
    return driver.compiled, errors


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.kernels", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more models, pages and numbers of rows")
    parser.add_argument(
        "--architecture", type=int, choices=SHARED_BYTES, default=90, help="compute capability, 90: 9.0"
    )
    parser.add_argument("--case", default="", metavar="PATTERN", help="only cases whose name matches this expression")
    parser.add_argument("--json", action="store_true", help="compiled kernels and errors as JSON")
    options = parser.parse_args()
    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set: nothing would be compiled")
    with tempfile.TemporaryDirectory() as folder:
        triton.knobs.cache.dir = folder
        cases = ((name, run) for name, run in (full() if options.full else quick()) if re.search(options.case, name))
        compiled, errors = compile_all(cases, options.architecture)
    if options.json:
        json.dump({"compiled": [asdict(each) for each in compiled], "errors": errors}, sys.stdout)
        return 0
    for each in compiled:
        loads = f"{each.load_bytes}{' asynchronously' if each.is_asynchronous else ''}"
        print(
            f"{each.case:48} {each.kernel:36} {each.warps:2} warps {each.stages} stages {each.registers:3} registers "
            f"{each.stack_bytes:4} spilled {each.shared_bytes:6} shared {each.products:7} "
            f"loads {loads} stores {each.store_bytes} {each.seconds:.1f} s"
        )
    for name, error in errors.items():
        print(f"{name}: {error}")
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
