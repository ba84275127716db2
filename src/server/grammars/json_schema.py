"""JSON schemas as grammars of llguidance, which generates only JSON texts that the schema allows.

    grammar_of_schema({"type": "object", "properties": {"a": {"type": "integer"}}}, "schema", ...)

Nothing is ignored: a keyword that cannot be obeyed is an error with its JSON pointer (schema_checks.py). Keywords that
no draft defines are annotations, as the standard says. `obeyable` is for schemas that are wishes: it leaves it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..protocol.errors import ApiError, bad_request
from ..protocol.whitespace import DEFAULT
from .compile import llguidance_grammar, problem_of
from .patterns import rust_pattern
from .schema_checks import NOT_OBEYED, check_metaschema, check_size, checked
from .schema_tree import rebuilt, subschemas

# Without \u each text has one spelling: else a listed property could be written as one that the schema does not list.
_ESCAPES = '"\\bfnrt'
_MAX_ATTEMPTS = 64  # to find the place that llguidance refuses
# llguidance's own allow 29 February in every year, and leap seconds at any time.
_DAYS = (
    "[0-9]{4}-(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|[0-9]{4}-(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
    "[0-9]{4}-02-(0[1-9]|1[0-9]|2[0-8])|"
    "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29"
)
_HOURS = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIMES = f"{_HOURS}:[0-5][0-9]([.][0-9]{{1,9}})?([Zz]|[-+]{_HOURS})"
_EXACT_FORMATS = {"date": f"^({_DAYS})$", "time": f"^{_TIMES}$", "date-time": f"^({_DAYS})[Tt]{_TIMES}$"}


def grammar_of_schema(
    schema: Any, param: str, *, whitespace_pattern: str | None, is_compact: bool, is_closed: bool
) -> str:
    """The grammar of the JSON texts that a schema allows, in their shortest or in a readable form.

    whitespace_pattern: between tokens; None for the default.
    is_closed: objects have only properties that their schema lists.

    Raises ApiError with the JSON pointer of what is wrong or cannot be obeyed.
    """
    schema = rebuilt(checked(schema, param), _for_llguidance)
    if is_closed:
        schema = rebuilt(schema, _closed)
    options: dict[str, Any] = {"lenient": False, "coerce_one_of": False, "json_allowed_escapes": _ESCAPES}
    if is_compact:
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = DEFAULT if whitespace_pattern is None else whitespace_pattern
    grammar = llguidance_grammar(schema, options)
    if (problem := problem_of(grammar)) is not None:
        raise _refused(problem, schema, options, param)
    return grammar


def obeyable(schema: Any, param: str) -> Any:
    """The schema without what no answer can be made to obey, and with patterns as llguidance reads them.

    For tools whose schema is a wish. Raises ApiError with the JSON pointer of what is not a JSON schema, or if nothing
    can obey what is left.
    """
    check_size(schema, param)
    found = rebuilt(schema, _without_wishes)
    options = {"lenient": True}
    if (problem := problem_of(llguidance_grammar(found, options))) is not None:
        check_metaschema(schema, param)
        raise _refused(problem, found, options, param)
    return found


def _without_wishes(node: dict[str, Any]) -> dict[str, Any]:
    """A subschema without what cannot be obeyed."""
    changed = {name: value for name, value in node.items() if name not in NOT_OBEYED and name != "x-guidance"}
    if "pattern" in node and (pattern := _obeyable_pattern(changed.pop("pattern"))) is not None:
        changed["pattern"] = pattern
    if isinstance(keys := node.get("patternProperties"), dict):
        found = {_obeyable_pattern(key): value for key, value in keys.items()}
        changed["patternProperties"] = {key: value for key, value in found.items() if key is not None}
    if "format" in node and not _is_obeyable({"type": "string", "format": node["format"]}):
        del changed["format"]
    if "oneOf" in node:  # that only one of them matches is left out
        changed = {"anyOf": changed.pop("oneOf"), **changed}
    return changed


def _obeyable_pattern(pattern: Any) -> str | None:
    try:
        found = rust_pattern(pattern)
    except (TypeError, ValueError):
        return None
    return found if _is_obeyable({"type": "string", "pattern": found}) else None


def _is_obeyable(schema: Mapping[str, Any]) -> bool:
    return problem_of(llguidance_grammar(schema, {})) is None


def _for_llguidance(node: dict[str, Any]) -> dict[str, Any]:
    changed = dict(node)
    if isinstance(node.get("pattern"), str):
        changed["pattern"] = rust_pattern(node["pattern"])
    if "patternProperties" in node:
        changed["patternProperties"] = {rust_pattern(key): value for key, value in node["patternProperties"].items()}
    if node.get("format") in _EXACT_FORMATS:
        changed["allOf"] = [*node.get("allOf", ()), {"pattern": _EXACT_FORMATS[changed.pop("format")]}]
    return changed


def _closed(node: dict[str, Any]) -> dict[str, Any]:
    """A subschema whose objects have only the properties that it lists, if it does not say otherwise."""
    is_open = "properties" in node and "additionalProperties" not in node and "patternProperties" not in node
    return {**node, "additionalProperties": False} if is_open else node


def _refused(problem: str, schema: Any, options: Mapping[str, Any], param: str) -> ApiError:
    """llguidance names no place: the deepest subschema that it refuses alone is the one."""
    pointer = ""
    shared = {name: schema[name] for name in ("$defs", "definitions") if isinstance(schema, dict) and name in schema}
    inner = list(subschemas(schema))[1 : _MAX_ATTEMPTS + 1]
    for place, node in inner:
        if not place.startswith(pointer):
            continue
        own = problem_of(llguidance_grammar({**shared, **node}, options))
        if own is not None:
            pointer, problem = place, own
    place = f"{param}#{pointer}"
    return bad_request(
        f"no answer can be made to obey this schema: {problem} (at `{place}`)", code="grammar_unsupported", param=place
    )
