from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator, Draft202012Validator

from stoker.config import load_deployment
from stoker.config.export import DRAFT_07, DRAFT_2020_12, FILES, accepted_values, json_schema, schema_text
from stoker.config.schema.options import Option, options

ROOT = Path(__file__).parents[3]
DEPLOYMENTS = sorted((ROOT / "deployments").glob("*.yaml"))
VALIDATORS = {
    DRAFT_2020_12: Draft202012Validator(json_schema(DRAFT_2020_12)),
    DRAFT_07: Draft7Validator(json_schema(DRAFT_07)),
}


def test_the_schemas_are_schemas() -> None:
    Draft202012Validator.check_schema(json_schema(DRAFT_2020_12))
    Draft7Validator.check_schema(json_schema(DRAFT_07))
    assert "$defs" not in schema_text(DRAFT_07)


def test_the_committed_schemas_are_fresh() -> None:
    for name, draft in FILES.items():
        assert (ROOT / "schemas" / name).read_text() == schema_text(draft), "run `engine schema --write`"


@pytest.mark.parametrize("file", DEPLOYMENTS, ids=lambda file: file.name)
def test_every_deployment_is_valid_for_loader_and_editor(file: Path) -> None:
    assert load_deployment([file], env={}).model.model
    content = yaml.safe_load(file.read_text())
    for validator in VALIDATORS.values():
        validator.validate(content)
    text = file.read_text()
    assert text.startswith("# yaml-language-server: $schema=../schemas/deployment.schema.json\n#\n# ")
    assert "#   engine up deployments/" + file.name in text


def written(option: Option, value: Any) -> dict[str, Any]:
    return {option.section: {option.name: value}} if option.section else {option.name: value}


def test_the_schema_accepts_what_the_loader_accepts() -> None:
    for option in options().values():
        taken = accepted_values(option)
        values = [*option.examples, *option.choices, None] if taken is None else [*taken, None]
        if option.section and option.kind != "mapping":
            values.append("${VARIABLE}")
        if not option.is_required and not option.is_secret:
            values.append(option.show(option.default))
        for value in values:
            content = json.loads(json.dumps(written(option, value)))
            for validator in VALIDATORS.values():
                validator.validate(content)


@pytest.mark.parametrize(
    "content",
    [
        {"cache": {"block_sise": 16}},
        {"cache": {"block_size": 17}},
        {"server": {"port": 70000}},
        {"server": {"enable_log_requests": "yes"}},
        {"scheduler": {"max_queued_tokens": "1KK"}},
        {"server": {"api_key": {"vault": "x"}}},
        {"modle": {}},
        {"lora": {"max_prompt_adapters": 2}},
        {"preset": "fast"},
        {"kind": "Pod"},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(content: dict[str, Any]) -> None:
    for validator in VALIDATORS.values():
        assert not validator.is_valid(content)


def test_free_keys_are_accepted() -> None:
    for validator in VALIDATORS.values():
        validator.validate({"x-anything": [{"a": 1}]})


def test_editors_show_meaning_and_default() -> None:
    port = json_schema()["$defs"]["ServerConfig"]["properties"]["port"]
    assert port["default"] == 8000
    assert port["description"].startswith("TCP port")
    assert json_schema()["$defs"]["ServerConfig"]["properties"]["drain_timeout"]["default"] == "30s"
    assert "default" not in json_schema()["$defs"]["ServerConfig"]["properties"]["api_key"]
