"""Triton's interpreter, made faster: it replaces the builtins of the language once per kernel.

By itself it does so for each function that a kernel calls, also `tl.sum`: a third of the time of these tests.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest


@cache
def replace_builtins_once() -> None:
    language = pytest.importorskip("triton.language")
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    replace = interpreter._patch_lang

    def once(function: Any) -> Any:
        """Within a kernel the builtins are replaced already; the caller of a function ignores the result."""
        modules = [each for each in function.__globals__.values() if each is language or each is language.core]
        return replace(function) if any(language.core.is_builtin(each.program_id) for each in modules) else None

    interpreter._patch_lang = once
