from __future__ import annotations

import re

import pytest
from tests.own_code import Only

from stoker.engine.plugins import PluginError, check_settings, import_class, import_named, make


@pytest.mark.parametrize("path", ["tests.own_code:Only", "tests.own_code.Only"])
def test_an_import_path_has_a_colon_or_a_dot_before_the_class(path: str):
    assert import_class(path, ("__call__",)) is Only


@pytest.mark.parametrize(
    ("path", "members", "message"),
    [
        ("Only", (), "Only: not an import path; write package.module:Name"),
        ("tests.none:Only", (), "tests.none:Only: tests.none cannot be imported: ModuleNotFoundError: No module named"),
        ("tests.own_code:None_", (), "tests.own_code:None_: tests.own_code has no None_"),
        ("tests.own_code:negated", (), "tests.own_code:negated: not a class"),
        ("tests.own_code:Only", ("__call__", "add", "abort"), "tests.own_code:Only: the class has no add, abort"),
    ],
)
def test_a_class_that_cannot_be_used_is_reported_with_what_is_missing(
    path: str, members: tuple[str, ...], message: str
):
    with pytest.raises(PluginError, match="^" + re.escape(message)) as caught:
        import_class(path, members)
    assert caught.value.exit_code == 78


def test_a_constructor_that_raises_is_reported_with_its_exception():
    path = "tests.own_code:CannotBeMade"
    with pytest.raises(PluginError, match=r"^tests\.own_code:CannotBeMade: cannot be made: RuntimeError: no licence$"):
        make(path, import_named(path), None)


def test_settings_that_the_schema_of_a_class_does_not_allow_are_reported_with_their_places():
    places = {"tests.own_code:Only.token_id": "deploy.yaml:7:15", "tests.own_code:Only.token": "deploy.yaml:8:12"}
    with pytest.raises(PluginError) as caught:
        check_settings("tests.own_code:Only", Only, {"token_id": "x", "token": 9}, places.__getitem__)
    assert sorted(str(caught.value).split("\n")) == [
        "tests.own_code:Only.token: no such key; did you mean `token_id`? (deploy.yaml:8:12)",
        "tests.own_code:Only.token_id: not allowed; allowed: a whole number, at least 0 (deploy.yaml:7:15)",
    ]


def test_settings_of_a_class_without_a_schema_are_not_checked():
    check_settings("m:Plain", object, {"anything": 1}, str)


def test_a_schema_that_is_not_one_is_the_fault_of_the_class():
    class Wrong:
        settings_schema = {"type": "nothing"}  # noqa: RUF012

    with pytest.raises(PluginError, match=r"^m:Wrong: `settings_schema` is not a JSON Schema: "):
        check_settings("m:Wrong", Wrong, {"a": 1}, str)


def test_a_setting_may_have_any_name():
    """Before, one named `path` or `found` ended the start with a traceback."""
    assert make("m:dict", dict, path=1, found=2, args=3, kwargs=4) == {"path": 1, "found": 2, "args": 3, "kwargs": 4}
