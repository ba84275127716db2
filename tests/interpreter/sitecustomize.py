"""Python imports this module at its start: processes of tests have this folder in PYTHONPATH.

Where Triton interprets its kernels, it does so as triton_interpreter.py says.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


class AfterTriton:
    """Finds the module `triton`, and changes its interpreter after the import."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "triton":
            return None
        sys.meta_path.remove(cls)
        found = PathFinder.find_spec(name, path)
        if found is not None and found.loader is not None:
            execute = found.loader.exec_module

            def execute_and_change(module: ModuleType) -> None:
                execute(module)
                sys.path.append(str(Path(__file__).parent))
                from triton_interpreter import make_faster

                sys.path.pop()
                make_faster()

            found.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return found


if os.environ.get("TRITON_INTERPRET") == "1" and "triton" not in sys.modules:
    sys.meta_path.insert(0, AfterTriton)
