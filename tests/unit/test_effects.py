"""Every option that counts as effective has a test that shows what it changes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from stoker.config.schema.options import options

TESTS = Path(__file__).parents[1]


@cache
def shown() -> list[tuple[str, str]]:
    """Path of an option -> place of a test that is marked with it, over all test files."""
    return [found for file in sorted(TESTS.rglob("test_*.py")) for found in _shown(file, file.read_text("utf-8"))]


def _shown(file: Path, source: str) -> Iterator[tuple[str, str]]:
    if "pytest.mark.effect(" in source:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.effect":
                for argument in node.args:
                    yield ast.literal_eval(argument), f"{file.relative_to(TESTS)}:{node.lineno}"


def test_each_effective_option_has_a_test_of_its_effect() -> None:
    effective = {path for path, option in options().items() if option.section and option.status == "effective"}
    assert effective - {path for path, _ in shown()} == set()


def test_no_test_claims_an_effect_of_what_has_none() -> None:
    known = {path for path, option in options().items() if option.status == "effective"}
    assert [(path, place) for path, place in shown() if path not in known] == []
