"""Every effective option has a test of what it changes, and every sentence about a rule a test of its truth."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from stoker.config.resolve.rule_tables.stated import SENTENCES
from stoker.config.schema.options import options

TESTS = Path(__file__).parents[1]


def marked(mark: str) -> Iterator[tuple[str, str]]:
    """What each `pytest.mark.<mark>(name, ...)` of all test files names, and its place."""
    for file in sorted(TESTS.rglob("test_*.py")):
        source = file.read_text("utf-8")
        if f"pytest.mark.{mark}(" in source:
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{mark}":
                    for argument in node.args:
                        yield ast.literal_eval(argument), f"{file.relative_to(TESTS)}:{node.lineno}"


@cache
def shown() -> list[tuple[str, str]]:
    """Path of an option -> place of a test that is marked with it."""
    return list(marked("effect"))


def test_each_effective_option_has_a_test_of_its_effect() -> None:
    effective = {path for path, option in options().items() if option.section and option.status == "effective"}
    assert effective - {path for path, _ in shown()} == set()


def test_no_test_claims_an_effect_of_what_has_none() -> None:
    known = {path for path, option in options().items() if option.status == "effective"}
    assert [(path, place) for path, place in shown() if path not in known] == []


def test_each_sentence_about_a_rule_has_a_test_that_shows_it() -> None:
    """Sentences said `there is one stage` and `both are refused` after this was no longer so."""
    assert {rule for rule, _ in marked("holds")} == SENTENCES.keys()
