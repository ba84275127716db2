"""What the JSON Schema takes and what the loader takes are the same, but for rules across options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator

from stoker.config import ConfigError, load_deployment
from stoker.config.export import DRAFT_07, DRAFT_2020_12, json_schema
from stoker.config.schema.options import Option, options

VALIDATORS = [Draft202012Validator(json_schema(DRAFT_2020_12)), Draft7Validator(json_schema(DRAFT_07))]
NOT_ALONE = ("extends", "preset", "config", "guided_decoding_backend")  # name files, or hold values of other options
WRITABLE = [option for option in options().values() if option.name not in NOT_ALONE]
ELSEWHERE = {"C105", "C123"}  # about other layers
CONFLICT = "C124"  # an option under its old and its new name: the loader reports this and does not check the old value


class AllSet(dict[str, str]):
    """An environment where every variable has a value, since a schema sees no environment."""

    def get(self, name: str, default: Any = None) -> Any:
        return "value"

    def __missing__(self, name: str) -> str:
        return "value"


TEXTS = [
    *("", "a", "0", "1", "16", "0.5", "64.0", "-1", "1e3", "auto", "none", "None", "true", "yes", "1k", "1.5K", "4GiB"),
    *("1.5GB", "30s", "1m30s", "0s", "/llm", "llm/", "https://a.example", "*", "bfloat16", "info", "x y", "a(b"),
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.sampled_from([-1, 0, 1, 2, 16, 128, 65535, 65536, 2**31 - 1, 2**31, 2**63]),
    st.floats(-2, 2, allow_nan=False).map(lambda number: round(number, 2)),
    st.sampled_from(TEXTS),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=2),
    st.dictionaries(st.sampled_from(["a", "env", "file", "name"]), SCALARS, max_size=2),
)


def values_of(option: Option) -> st.SearchStrategy[Any]:
    likely = [*option.examples, *option.choices, *option.refused]
    if option.status == "refused":
        likely += [list(value) if isinstance(value, tuple) else value for value in option.accepted]
    return st.sampled_from(likely) | VALUES if likely else VALUES


def codes(folder: Path, content: Any) -> set[str]:
    file = folder / "deploy.yaml"
    file.write_text(json.dumps(content))
    try:
        load_deployment([file], [], AllSet())
    except ConfigError as error:
        findings = [finding for finding in error.diagnostics if not finding.message.startswith("the secret file")]
        return {finding.code for finding in findings if finding.is_error} - ELSEWHERE
    return set()


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_schema_and_the_loader_agree_on_every_value(tmp_path: Path, data: st.DataObject) -> None:
    option = data.draw(st.sampled_from(WRITABLE))
    value = data.draw(values_of(option))
    content = {option.section: {option.name: value}} if option.section else {option.name: value}
    said = codes(tmp_path, content)
    for validator in VALIDATORS:
        assert validator.is_valid(content) == (not said), (option.path, value, said)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_schema_and_the_loader_agree_on_whole_manifests(tmp_path: Path, data: st.DataObject) -> None:
    content: dict[str, Any] = {}
    for option in data.draw(st.lists(st.sampled_from(WRITABLE), max_size=8, unique_by=lambda option: option.path)):
        home = content.setdefault(option.section, {}) if option.section else content
        home[option.name] = data.draw(values_of(option))
    if data.draw(st.booleans()):
        content.setdefault("server", {})[data.draw(st.sampled_from(["prot", "x-mine", "port"]))] = 1
    if data.draw(st.booleans()):
        content[data.draw(st.sampled_from(["x-free", "modle", "lora"]))] = data.draw(VALUES)
    said = codes(tmp_path, content)
    assume(CONFLICT not in said)
    assert VALIDATORS[0].is_valid(content) == (not said), (content, said)


@pytest.mark.parametrize("value", [False, [8000], ["ftp://a.example"], "a.example"])
def test_the_schema_knows_the_form_of_each_text_of_a_list(value: Any) -> None:
    for validator in VALIDATORS:
        assert validator.is_valid({"kv_transfer": {"prefill_servers": "http://a.example:8000"}})
        assert not validator.is_valid({"kv_transfer": {"prefill_servers": value}})
