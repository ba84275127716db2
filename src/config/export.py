"""JSON Schema of deployment files: 2020-12, and a draft-07 twin for editors that know no newer one.

Drawn from the declarations. Beyond what pydantic writes, every option takes null (unset) and `${VAR}` texts, a list
takes a single value, a secret takes {env: NAME} and {file: path}, and keys that start with `x-` are free.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from .schema.deployment import DeploymentConfig
from .schema.options import Option, options, sections
from .source.presets import preset_names

DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"
DRAFT_07 = "http://json-schema.org/draft-07/schema#"
FILES = {"deployment.schema.json": DRAFT_2020_12, "deployment.draft-07.schema.json": DRAFT_07}

_INTERPOLATION = {"type": "string", "pattern": r"\$\{", "description": "Filled in from the environment."}
_SECRET = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {
            "type": "object",
            "properties": {"env": {"type": "string", "minLength": 1}},
            "required": ["env"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"file": {"type": "string", "minLength": 1}},
            "required": ["file"],
            "additionalProperties": False,
        },
    ]
}


def json_schema(draft: str = DRAFT_2020_12) -> dict[str, Any]:
    """The schema of one deployment file. `draft` is one of the two above."""
    is_new = draft == DRAFT_2020_12
    written = DeploymentConfig.model_json_schema(mode="validation")
    definitions = written["$defs"]
    home = "$defs" if is_new else "definitions"
    properties: dict[str, Any] = {}
    kept: dict[str, Any] = {"Interpolation": _INTERPOLATION, "Secret": _SECRET}
    for name, schema in written["properties"].items():
        if name in sections():
            section = sections()[name].__name__
            kept[section] = _section(name, definitions[section])
            properties[name] = {
                "anyOf": [{"$ref": f"#/{home}/{section}"}, {"type": "null"}],
                "description": kept[section]["description"],
            }
        else:
            properties[name] = _option(options()[name], schema, home)
    return {
        "$schema": draft,
        "title": "Stoker deployment",
        "description": written["description"],
        "type": "object",
        "properties": properties,
        # model.model is not required: an overlay, or a file that extends another, need not repeat it
        "additionalProperties": False,
        "patternProperties": {"^x-": True},
        home: _at_home(kept, home),
    }


def _section(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    found = {
        key: _option(options()[f"{name}.{key}"], value, "$defs") for key, value in schema.get("properties", {}).items()
    }
    return {
        "title": schema["title"],
        "description": schema.get("description", ""),
        "type": "object",
        "properties": found,
        "additionalProperties": False,
    }


def _option(option: Option, schema: dict[str, Any], home: str) -> dict[str, Any]:
    """One property: what editors show on the outside, what the value may be in `anyOf`."""
    schema = copy.deepcopy(schema)
    kept: dict[str, Any] = {
        key: schema.pop(key)
        for key in ("title", "default", "examples", "unit", "reload", "devices", "since", "kind", "refused")
        if key in schema
    }
    schema.pop("description", None)
    kept.pop("title", None)
    for key in ("unit", "reload", "devices", "since"):
        if key in kept:
            kept[f"x-{key}"] = kept.pop(key)
    kept.pop("kind", None)
    kept.pop("refused", None)
    if not option.is_required:
        kept["default"] = option.show(option.default)
    if option.is_secret:
        one: dict[str, Any] = {"$ref": f"#/{home}/Secret"}
        choices: list[Any] = [one, {"type": "array", "items": one}] if option.kind == "texts" else [one]
        kept.pop("default", None)
    elif option.kind == "texts":
        text = {"type": ["string", "number", "boolean"]}
        choices = [text, {"type": "array", "items": text}]
    elif option.kind == "text":
        choices = [{**_text_bounds(schema), "type": ["string", "number", "boolean"]}]
    else:
        choices = list(schema.pop("anyOf", [schema]))
        if option.name == "preset":
            choices = [{"enum": list(preset_names())}]
        choices.append({"$ref": f"#/{home}/Interpolation"})
    if option.name == "preset":
        choices = [{"enum": list(preset_names())}, {"$ref": f"#/{home}/Interpolation"}]
    choices = [choice for choice in choices if choice != {"type": "null"}]
    return {"description": option.description, **kept, "anyOf": [*choices, {"type": "null"}]}


def _text_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """minLength; a pattern is left to the loader, since a `${VAR}` need not match it before it is filled in."""
    branches = schema.get("anyOf", [schema])
    return next(({"minLength": branch["minLength"]} for branch in branches if "minLength" in branch), {})


def _at_home(definitions: dict[str, Any], home: str) -> dict[str, Any]:
    """References point to where this draft keeps its definitions."""
    moved: dict[str, Any] = json.loads(json.dumps(definitions).replace("#/$defs/", f"#/{home}/"))
    return moved


def schema_text(draft: str) -> str:
    """The file's content."""
    return json.dumps(json_schema(draft), indent=2, ensure_ascii=False) + "\n"
