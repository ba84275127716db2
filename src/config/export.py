"""JSON Schema of deployment files: 2020-12, and draft-07 for editors that do not support a newer one.

Generated from the declarations, not from pydantic's schema: every option accepts null (unset) and `${VAR}` texts,
numbers accept units, a list accepts a single value, a secret accepts {env: NAME} and {file: path}, keys that start with
`x-` are free, and the files do not change with the release of pydantic.
"""

from __future__ import annotations

import json
from typing import Any

from annotated_types import Ge, Gt, Le

from .presets import preset_names
from .schema.annotation import Kind
from .schema.deployment import DeploymentConfig
from .schema.options import Option, option_and_keys, options, options_of, sections

DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"
DRAFT_07 = "http://json-schema.org/draft-07/schema#"
FILES = {"deployment.schema.json": DRAFT_2020_12, "deployment.draft-07.schema.json": DRAFT_07}

_NOT_ZERO = r"(?=.*[1-9])"
# positive numbers as texts; a fraction needs a unit
_UNITS: dict[Kind, str] = {
    "human int": rf"^{_NOT_ZERO}([0-9]+(\.0+|[kmgtKMGT])?|[0-9]+\.[0-9]+[kmgt])$",
    "size": rf"^{_NOT_ZERO}([0-9]+(\.0+|\s*(B|[kKMGT]i?B)|[kmgtKMGT])?|[0-9]+\.[0-9]+(\s*[kKMGT]i?B|[kmgt]))$",
    "duration": rf"^{_NOT_ZERO}([0-9]+|([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+)$",
}
_INTERPOLATION = {"type": "string", "pattern": r"\$\{", "description": "Replaced from the environment."}
_SECRET = {
    "anyOf": [
        {"type": ["string", "number", "boolean"], "minLength": 1},
        {
            "type": "object",
            "properties": {"env": {"type": "string", "pattern": r"^[A-Za-z_][A-Za-z0-9_]*$"}},
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
    home = "$defs" if is_new else "definitions"
    properties: dict[str, Any] = {}
    kept: dict[str, Any] = {"Interpolation": _INTERPOLATION, "Secret": _SECRET}
    for name in DeploymentConfig.model_fields:
        if name in sections():
            title = sections()[name].__name__
            kept[title] = _section(name, home)
            properties[name] = {
                "description": kept[title]["description"],
                "anyOf": [{"$ref": f"#/{home}/{title}"}, {"type": "null"}],
            }
        else:
            properties[name] = _option(options()[name], home)
    return {
        "$schema": draft,
        "title": "Stoker deployment",
        "description": _docstring(DeploymentConfig),
        "type": "object",
        "properties": properties,
        # model.model is not required: an overlay, or a file that extends another, need not repeat it
        "additionalProperties": False,
        "patternProperties": {"^x-": True},
        home: kept,
    }


def _section(name: str, home: str) -> dict[str, Any]:
    return {
        "title": f"Section {name}",
        "description": _docstring(sections()[name]),
        "type": "object",
        "properties": {option.name: _option(option, home) for option in options_of(name)},
        "additionalProperties": False,
    }


def _docstring(section: type[object]) -> str:
    return (section.__doc__ or "").strip()


def _option(option: Option, home: str) -> dict[str, Any]:
    """One property: what editors show at the top level, what the value may be in `anyOf`."""
    shown: dict[str, Any] = {"description": option.description}
    if not option.is_required and not option.is_secret:
        shown["default"] = option.show(option.default)
    if option.status == "effective":
        shown["examples"] = option.examples
    shown |= {"x-status": option.status, "x-reload": option.reload, "x-since": option.since}
    if option.devices:
        shown["x-devices"] = list(option.devices)
    if option.status == "deprecated":
        shown |= {"deprecated": True, "deprecationMessage": option.reason}
    if option.status == "refused":
        shown["description"] = f"{option.description} Not available in this build: {option.reason}."
    if option.unit:
        shown["x-unit"] = option.unit
    return {**shown, "anyOf": [*_values(option, home), {"type": "null"}]}


def _values(option: Option, home: str) -> list[dict[str, Any]]:
    """What the option accepts besides null."""
    interpolation = {"$ref": f"#/{home}/Interpolation"}
    if (taken := accepted_values(option)) is not None:
        return [{"enum": [list(value) if isinstance(value, tuple) else value for value in taken]}, interpolation]
    if option.is_secret:
        secret: dict[str, Any] = {"$ref": f"#/{home}/Secret"}
        return [secret, {"type": "array", "items": secret}] if option.kind == "texts" else [secret]
    if option.name == "preset":
        return [{"enum": list(preset_names())}, interpolation]
    text: dict[str, Any] = {"type": ["string", "number", "boolean"]}  # scalars count as written: `revision: 0123`
    if option.min_length:
        text["minLength"] = option.min_length
    if option.pattern:
        text = {"anyOf": [{"type": "string", "pattern": option.pattern}, interpolation]}
    if option.words:
        text = {"anyOf": [{"enum": list(option.words)}, interpolation]}
    match option.kind:
        case "text":
            return [*([{"enum": list(option.choices)}] if option.choices else []), text]
        case "texts":
            return [text, {"type": "array", "items": text}]
        case "mapping":
            words = [{"enum": list(option.choices)}] if option.choices else []
            of_texts = {"additionalProperties": {"type": "string"}} if option.has_text_values else {}
            return [of_texts | option.json_schema, *words, interpolation]
        case "choice":
            return [{"enum": list(option.choices)}, interpolation]
        case "flag":
            words = [{"enum": list(option.choices)}] if option.choices else []
            return [{"type": "boolean"}, *words, interpolation]
    is_fraction = option.kind in ("number", "duration")
    number: dict[str, Any] = {"type": "number" if is_fraction else "integer"}
    for bound in option.bounds:
        number |= _bound(bound)
    if option.kind == "wholes":
        return [number, {"type": "array", "items": {"anyOf": [number, interpolation]}}, interpolation]
    values: list[dict[str, Any]] = [number]
    if option.kind in _UNITS:
        may_be_zero = any(isinstance(bound, Ge) and bound.ge == 0 for bound in option.bounds)
        pattern = _UNITS[option.kind]
        values.append({"type": "string", "pattern": pattern.replace(_NOT_ZERO, "") if may_be_zero else pattern})
    if option.choices:
        spellings = [word for number in option.spellings for word in (number, str(number))]
        values.insert(0, {"enum": [*option.choices, *spellings]})
    return [*values, interpolation]


def accepted_values(option: Option) -> list[Any] | None:
    """All values that an option accepts besides null, if it is a small set; None for an ordinary option.

    A refused option accepts its default. A deprecated one that maps onto refused ones accepts what maps onto theirs.
    """
    if option.status == "refused":
        return [value for value in option.accepted if value is not None]
    if option.status == "deprecated":
        candidates = list(option.choices) if option.kind == "choice" else [False, True] if option.kind == "flag" else []
        targets = [option_and_keys(path)[0] for path in option.replaced_by]
        if candidates or any(target.status == "refused" for target in targets):
            candidates = candidates or [value for target in targets for value in target.accepted]
            return [value for value in candidates if _is_taken(option, value)]
    return None


def _is_taken(option: Option, value: Any) -> bool:
    """Whether everything that a value of a deprecated option maps onto is accepted."""
    if value is None:
        return False
    try:
        becomes = option.becomes(value)
    except ValueError:
        return False
    for path, new in becomes.items():
        target, keys = option_and_keys(path)
        if target.status == "refused" and (keys or new not in target.accepted):
            return False
    return True


def _bound(bound: Any) -> dict[str, Any]:
    match bound:
        case Ge(ge=least):
            return {"minimum": least}
        case Gt(gt=least):
            return {"exclusiveMinimum": least}
        case Le(le=most):
            return {"maximum": most}
        case _:
            return {"exclusiveMaximum": bound.lt}


def schema_text(draft: str) -> str:
    """The content of the file."""
    return json.dumps(json_schema(draft), indent=2, ensure_ascii=False) + "\n"
