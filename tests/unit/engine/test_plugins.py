from __future__ import annotations

import re

import pytest
from tests.own_code import Only

from stoker.engine.plugins import PluginError, import_class, import_named, make


@pytest.mark.parametrize("path", ["tests.own_code:Only", "tests.own_code.Only"])
def test_a_class_is_named_with_a_colon_or_a_dot(path: str):
    assert import_class(path, ("__call__",)) is Only


@pytest.mark.parametrize(
    ("path", "members", "said"),
    [
        ("Only", (), "Only: no import path; write package.module:Class"),
        ("tests.none:Only", (), "tests.none:Only: tests.none cannot be imported: ModuleNotFoundError: No module named"),
        ("tests.own_code:None_", (), "tests.own_code:None_: tests.own_code has no None_"),
        ("tests.own_code:negated", (), "tests.own_code:negated: not a class"),
        ("tests.own_code:Only", ("__call__", "add", "abort"), "tests.own_code:Only: the class has no add, abort"),
    ],
)
def test_what_cannot_be_used_is_named_with_what_is_missing(path: str, members: tuple[str, ...], said: str):
    with pytest.raises(PluginError, match="^" + re.escape(said)) as caught:
        import_class(path, members)
    assert caught.value.exit_code == 78


def test_a_class_that_cannot_be_made_says_why():
    path = "tests.own_code:CannotBeMade"
    with pytest.raises(PluginError, match=r"^tests\.own_code:CannotBeMade: cannot be made: RuntimeError: no licence$"):
        make(path, import_named(path), None)
