"""Values of mapping options are checked against their declared JSON Schemas, each at its own place."""

from __future__ import annotations

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from stoker.config import ConfigError, load_deployment
from stoker.config.schema.options import options

from ..deployments import load, message

MODEL = "model:\n  model: x\n"


def test_all_violations_of_a_mapping_are_reported_with_their_lines(tmp_path: Path) -> None:
    text = MODEL + (
        "  override_generation_config:\n    temprature: 1\n    top_p: 0\n    top_k: 1.5\n    temperature: hot\n"
        "load:\n  pt_load_map_location:\n    cuda:0: cuda:1\n"
    )
    assert message(tmp_path, text) == (
        "error[C103]: no such key `model.override_generation_config.temprature`\n"
        "  --> deploy.yaml:4:5\n"
        " 4 |     temprature: 1\n"
        "   |     ^^^^^^^^^^ did you mean `temperature`?\n"
        "\n"
        "error[C107]: `model.override_generation_config.top_p` is 0\n"
        "  --> deploy.yaml:5:12\n"
        " 5 |     top_p: 0\n"
        "   |            ^ allowed: a number, greater than 0, at most 1\n"
        "   = more: engine explain C107\n"
        "\n"
        "error[C104]: `model.override_generation_config.top_k` is 1.5\n"
        "  --> deploy.yaml:6:12\n"
        " 6 |     top_k: 1.5\n"
        "   |            ^^^ allowed: a whole number, at least -1, at most 2147483648\n"
        "   = more: engine explain C104\n"
        "\n"
        'error[C104]: `model.override_generation_config.temperature` is "hot"\n'
        "  --> deploy.yaml:7:18\n"
        " 7 |     temperature: hot\n"
        "   |                  ^^^ allowed: a number, at least 0, at most 1000000\n"
        "   = more: engine explain C104\n"
        "\n"
        'error[C107]: `load.pt_load_map_location.cuda:0` is "cuda:1"\n'
        "  --> deploy.yaml:10:13\n"
        " 10 |     cuda:0: cuda:1\n"
        "    |             ^^^^^^ allowed: cpu\n"
        "    = more: engine explain C107"
    )


def test_a_wrong_key_is_reported_where_its_layer_wrote_it(tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text(MODEL + "  rope_scaling: {rope_type: linear, factor: 2}\n")
    with pytest.raises(ConfigError) as caught:
        load_deployment([file], ["--rope-scaling.factr", "4"], {})
    (finding,) = caught.value.diagnostics
    assert finding.path == "model.rope_scaling.factr"
    assert str(finding.labels[0].span) == "command line"


def test_a_wrong_value_is_reported_once_though_another_layer_overrides_it(tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text(MODEL + "  rope_scaling: {rope_type: linear, factor: two}\n")
    with pytest.raises(ConfigError) as caught:
        load_deployment([file], ["--rope-scaling.factor", "4"], {})
    assert [finding.path for finding in caught.value.diagnostics] == ["model.rope_scaling.factor"]


def test_variables_are_filled_in_before_the_check(tmp_path: Path) -> None:
    text = MODEL + "  rope_scaling:\n    rope_type: linear\n    factor: ${FACTOR}\n"
    assert load(tmp_path, text, env={"FACTOR": "4"}).model.rope_scaling["factor"] == 4


def test_a_text_that_may_be_a_secret_is_not_part_of_the_message(tmp_path: Path) -> None:
    text = MODEL + "  override_generation_config:\n    max_tokens: sk-hidden\n"
    assert "`model.override_generation_config.max_tokens` is not allowed" in message(tmp_path, text)


def test_declared_schemas_are_schemas_and_take_the_examples() -> None:
    declared = [option for option in options().values() if option.has_known_keys]
    assert declared
    for option in declared:
        Draft202012Validator.check_schema(option.json_schema)
        validator = Draft202012Validator(option.json_schema)
        assert all(validator.is_valid(example) for example in option.examples if isinstance(example, dict)), option.path
