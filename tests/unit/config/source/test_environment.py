from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.config import ConfigError, Deployment, load_deployment
from stoker.config.source.environment import EnvironmentSource


def load(**env: str) -> Deployment:
    return load_deployment([], ["--model", "x"], env)


def codes(**env: str) -> list[str]:
    try:
        return [finding.code for finding in load(**env).warnings]
    except ConfigError as error:
        return [finding.code for finding in error.diagnostics]


def test_a_variable_sets_an_option() -> None:
    deployment = load(ENGINE__SERVER__PORT="81", ENGINE__MODEL__MAX_MODEL_LEN="4k", ENGINE__PRESET="latency")
    assert (deployment.server.port, deployment.model.max_model_len, deployment.scheduler.max_num_seqs) == (81, 4000, 8)
    assert str(deployment.origin("server.port")) == "environment ENGINE__SERVER__PORT"


def test_lists_have_commas_or_are_json() -> None:
    assert load(ENGINE__MODEL__SERVED_MODEL_NAME="a, b").model.served_model_name == ("a", "b")
    assert load(ENGINE__MODEL__SERVED_MODEL_NAME='["a,b"]').model.served_model_name == ("a,b",)


def test_mappings_are_json_whole_or_by_key() -> None:
    env = {"ENGINE__MODEL__HF_OVERRIDES": '{"a": {"b": 1}}', "ENGINE__MODEL__HF_OVERRIDES__A__C": "1e6"}
    assert load(**env).model.hf_overrides == {"a": {"b": 1, "c": 1e6}}


@pytest.mark.parametrize("value", ["{", "[1]", "x", "[" * 100_000, "9" * 5000])
def test_broken_json_is_reported(value: str) -> None:
    assert codes(ENGINE__MODEL__HF_OVERRIDES=value) == ["C104"]


@pytest.mark.parametrize("value", ["", "None", "null", "~"])
def test_an_empty_variable_unsets(value: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: {model: x, revision: main}\nserver: {port: 81}\n")
    env = {"ENGINE__SERVER__PORT": value, "ENGINE__MODEL__REVISION": "" if value == "~" else value}
    deployment = load_deployment([tmp_path / "a.yaml"], env=env)
    assert (deployment.server.port, deployment.model.revision) == (8000, None)


def test_an_unknown_variable_is_an_error_that_names_the_nearest_and_not_its_value() -> None:
    with pytest.raises(ConfigError) as caught:
        load(ENGINE__SERVER__API_KEE="sk-123")
    assert "did you mean `ENGINE__SERVER__API_KEY`" in str(caught.value)
    assert "sk-123" not in str(caught.value)


def test_a_bad_value_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="environment variable ENGINE__SERVER__PORT"):
        load(ENGINE__SERVER__PORT="http")


@pytest.mark.parametrize(
    "name", ["ENGINE_SERVER_PORT", "ENGINE_SERVER__PORT", "ENGINE__SERVER_PORT_", "engine_server_port"]
)
def test_near_misses_are_reported(name: str) -> None:
    assert codes(**{name: "81"}) == (["C116"] if name.startswith("ENGINE__") else ["C117"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENGINE_PORT", "tcp://10.0.0.1:8000"),
        ("ENGINE_SERVICE_HOST", "10.0.0.1"),
        ("ENGINE_SERVICE_PORT", "8000"),
        ("ENGINE_SERVICE_PORT_HTTP", "8000"),
        ("ENGINE_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("ENGINE_PORT_8000_TCP_ADDR", "10.0.0.1"),
        ("ENGINE__SERVER_PORT", "tcp://10.0.0.1:8000"),
        ("ENGINE_ROOM", "below"),
        ("OTHER__SERVER__PORT", "1"),
    ],
)
def test_variables_of_others_are_left_alone(name: str, value: str) -> None:
    assert codes(**{name: value}) == []


def test_apiversion_kind_and_extends_belong_to_files() -> None:
    assert codes(ENGINE__KIND="Deployment") == ["C116"]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.text("SERVERPOT_X", max_size=12), st.text(max_size=20))
def test_no_variable_makes_it_stumble(name: str, value: str) -> None:
    source = EnvironmentSource({f"ENGINE__{name}": value})
    assert all(finding.as_text() for finding in source.found)
