"""Runs `engine render` for tests, and checks Kubernetes objects against their published structure."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from stoker.cli.flags.writing import RenderFlags
from stoker.cli.render import run

GOLDEN = Path(__file__).parents[2] / "golden" / "render"


def rendered(capsys: pytest.CaptureFixture[str], form: str, file: str = "deploy.yaml", **wanted: Any) -> str:
    if form != "systemd":
        wanted.setdefault("image", "registry.local/stoker:1")
    assert run(RenderFlags(form, file, **wanted)) == 0
    return capsys.readouterr().out


def refused(
    capsys: pytest.CaptureFixture[str], form: str, file: str = "deploy.yaml", code: int = 78, **wanted: Any
) -> str:
    assert run(RenderFlags(form, file, **wanted)) == code
    answer, talk = capsys.readouterr()
    assert answer == ""
    return talk


def objects(text: str) -> dict[str, Any]:
    """By kind, with the name if there are several of a kind."""
    found: dict[str, Any] = {}
    for each in yaml.safe_load_all(text):
        kind = each["kind"]
        found[f"{kind} {each['metadata']['name']}" if kind in found else kind] = each
    return found


@cache
def _schema() -> dict[str, Any]:
    parts = [json.loads((GOLDEN / f"{name}.schema.json").read_text()) for name in ("kubernetes", "custom-resources")]
    return {key: {**parts[0][key], **parts[1][key]} for key in ("roots", "$defs")}


def check_object(each: dict[str, Any]) -> None:
    """Raises jsonschema.ValidationError for a name or type that the object does not have."""
    schema = _schema()
    root = {"$ref": f"#/$defs/{schema['roots'][each['kind']]}", "$defs": schema["$defs"]}
    jsonschema.Draft202012Validator(root).validate(each)  # `jsonschema.validate` checks the large schema each time
