"""Checks values against JSON Schemas: every violation, with its place in the value and what is allowed there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .suggest import close, did_you_mean
from .yaml_writer import inline

if TYPE_CHECKING:
    from jsonschema import ValidationError

Kind = Literal["unknown key", "missing key", "type", "value"]
Place = tuple[str | int, ...]  # keys and indices, from the outermost

_TYPES = {
    "number": "a number",
    "integer": "a whole number",
    "string": "a text",
    "boolean": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "null",
}
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "greater than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
    "multipleOf": "a multiple of",
    "minLength": "of a length of at least",
    "maxLength": "of a length of at most",
    "minItems": "with a number of items of at least",
    "maxItems": "with a number of items of at most",
    "pattern": "matching",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """`place` is the place of the value, or of the unknown or missing key. `allowed` is a phrase for a message."""

    kind: Kind
    place: Place
    allowed: str = ""
    suggestions: tuple[str, ...] = ()

    def path(self, root: str) -> str:
        """The dotted path below `root`: `model.rope_scaling.factor`, `settings.words[0]`."""
        return root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.place)


def violations(schema: Mapping[str, Any], value: Any) -> list[Violation]:
    """Everything in `value` that the schema (draft 2020-12) does not allow, in the order of the value's keys.

    Alternatives (`anyOf`) are not ranked, since the best match is often not the one that was meant: what each of them
    allows at a place is reported together.
    """
    from jsonschema import Draft202012Validator  # slow to import, and few deployments have a value to check

    found: dict[tuple[Kind, Place], list[Violation]] = {}
    for error in Draft202012Validator(schema).iter_errors(value):
        for violation in _leaves(error):
            found.setdefault((violation.kind, violation.place), []).append(violation)
    return [_joined(alternatives) for alternatives in found.values()]


def _joined(alternatives: list[Violation]) -> Violation:
    first = alternatives[0]
    said = dict.fromkeys(violation.allowed for violation in alternatives)
    return Violation(first.kind, first.place, " or ".join(said), first.suggestions)


def _leaves(error: ValidationError) -> Iterator[Violation]:
    place: Place = tuple(error.absolute_path)
    schema: Any = error.schema
    value: Any = error.instance
    rule: Any = error.validator_value
    if error.context:
        for inner in error.context:
            yield from _leaves(inner)
    elif error.validator == "additionalProperties":
        known = schema.get("properties", {})
        for key in value:
            if key not in known:
                suggestions = close(key, known)
                said = did_you_mean(suggestions) or (f"allowed: {', '.join(known)}" if known else "no keys are allowed")
                yield Violation("unknown key", (*place, key), said, tuple(suggestions))
    elif error.validator == "required":
        known = schema.get("properties", {})
        for key in rule:
            if key not in value:
                yield Violation("missing key", (*place, key), allowed_text(known.get(key, {})))
    elif error.validator == "type":
        yield Violation("type", place, allowed_text(schema))
    else:
        yield Violation("value", place, allowed_text(schema) or error.message)


def allowed_text(schema: Mapping[str, Any]) -> str:
    """What a schema allows, in words: `a number, greater than 0`. Empty for one that says nothing about the value."""
    if "const" in schema:
        return inline(schema["const"])
    if "enum" in schema:
        return ", ".join(map(inline, schema["enum"]))
    types = schema.get("type", [])
    words = [_TYPES[name] for name in ([types] if isinstance(types, str) else types)]
    limits = [f"{said} {_number(schema[key])}" for key, said in _BOUNDS.items() if key in schema]
    return ", ".join(part for part in (" or ".join(words), *limits) if part)


def _number(limit: Any) -> str:
    return str(int(limit)) if isinstance(limit, float) and limit.is_integer() else str(limit)
