"""Request fields that constrain the output: OpenAI's, vLLM's of both eras, SGLang's and llama.cpp's.

They become one OutputGrammar: what is wanted, and which field asked for it. What that means as a grammar, and whether
it can be obeyed, is found in an isolated process (../grammars).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field

from ...text.json_text import is_too_deep
from .errors import ApiError, bad_request, unsupported
from .json import MAX_KEPT_VALUES
from .whitespace import checked_pattern

# obeyable_json: what of a schema can be obeyed; the grammar is that schema.
GrammarKind = Literal["json", "obeyable_json", "json_object", "regex", "choice", "lark", "gbnf", "structural_tag"]
BACKENDS = ("auto", "guidance")
MAX_GRAMMAR_CHARS = 1 << 20  # of a grammar, also of a schema that is sent as a text
_OPTIONS = ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")
_DEPRECATED = "deprecated: send `structured_outputs`"


@dataclass(frozen=True, slots=True)
class OutputGrammar:
    """What an answer must obey, as a request says it."""

    kind: GrammarKind
    source: Any  # a schema, a text, or a list of texts
    param: str  # the field, for errors
    whitespace_pattern: str | None = None  # between the tokens of JSON; None: a bounded amount
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False


_Read = Callable[[Any, str], OutputGrammar | None]  # of a field's value and its name


class StructuredFields(BaseModel):
    """Fields that constrain the output; a request may use at most one of them."""

    response_format: dict[str, Any] | None = Field(
        None,
        description="`text`, `json_object`, `json_schema` (enforced with and without `strict`) or `structural_tag`",
    )
    structured_outputs: dict[str, Any] | None = Field(
        None,
        description="one of `json`, `regex`, `choice`, `grammar` (Lark or EBNF), `json_object`, `structural_tag`; with "
        "`whitespace_pattern`, `disable_any_whitespace`, `disable_additional_properties`",
    )
    guided_json: dict[str, Any] | str | None = Field(None, description=_DEPRECATED)
    guided_regex: str | None = Field(None, description=_DEPRECATED)
    guided_choice: list[str] | None = Field(None, description=_DEPRECATED)
    guided_grammar: str | None = Field(None, description=_DEPRECATED)
    guided_json_object: bool | None = Field(None, description=_DEPRECATED)
    guided_whitespace_pattern: str | None = Field(None, description=_DEPRECATED)
    guided_decoding_backend: str | None = Field(None, description="`auto` or `guidance`; " + _DEPRECATED)
    regex: str | None = Field(None, description="a regular expression, as in SGLang")
    ebnf: str | None = Field(None, description="a grammar in EBNF, as in SGLang")
    json_schema: dict[str, Any] | str | None = Field(
        None, description="as in SGLang (a text) and llama.cpp (an object)"
    )
    grammar: str | None = Field(None, description="a grammar in GBNF, as in llama.cpp")

    @property
    def output_grammar(self) -> OutputGrammar | None:
        """What the answer must obey, if anything. Raises ApiError for fields that are wrong or exclude each other."""
        found = [read(self) for read in _READERS]
        wanted = [grammar for grammar in found if grammar is not None]
        if len(wanted) > 1:
            names = f"`{wanted[0].param}` and `{wanted[1].param}`"
            raise bad_request(f"{names} exclude each other: one grammar can be obeyed", param=wanted[1].param)
        self._check_backend()
        return wanted[0] if wanted else None

    def _check_backend(self) -> None:
        name = (self.guided_decoding_backend or "auto").partition(":")[0]
        if name not in BACKENDS:
            known = ", ".join(BACKENDS)
            raise unsupported("guided_decoding_backend", f": {name[:40]!r} is none of the backends here, {known}")


def _schema(value: Any, param: str) -> Any:
    """A schema, which clients may send as a text."""
    if isinstance(value, str):
        if len(value) > MAX_GRAMMAR_CHARS or sum(map(value.count, ",[{")) > MAX_KEPT_VALUES:  # before values are made
            raise too_large(param)
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise bad_request(f"`{param}` is not JSON: {error}", param=param) from None
        except ValueError:  # the interpreter's limit on digits
            raise bad_request(f"`{param}` contains a number with thousands of digits", param=param) from None
        except RecursionError:
            raise _too_deep(param) from None
        if is_too_deep(value):
            raise _too_deep(param)
    if not isinstance(value, dict | bool):
        raise bad_request(f"`{param}` must be a JSON schema: an object", code="invalid_type", param=param)
    return value


def too_large(param: str) -> ApiError:
    message = f"`{param}` is too large: a grammar has at most {MAX_GRAMMAR_CHARS} characters"
    return bad_request(f"{message} and {MAX_KEPT_VALUES} values", code="grammar_too_complex", param=param)


def _too_deep(param: str) -> ApiError:
    return bad_request(f"`{param}` is nested too deeply", code="grammar_too_complex", param=param)


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise bad_request(f"`{param}` must be a text", code="invalid_type", param=param)
    if not value:
        raise bad_request(f"`{param}` is empty", param=param)
    return value


def _grammar_text(value: Any, param: str) -> OutputGrammar:
    text = _text(value, param)
    return OutputGrammar("gbnf" if "::=" in text else "lark", text, param)


def _choice(value: Any, param: str) -> OutputGrammar:
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
        raise bad_request(f"`{param}` must be a list of texts that are not empty", code="invalid_type", param=param)
    return OutputGrammar("choice", value, param)


def _json(value: Any, param: str) -> OutputGrammar:
    return OutputGrammar("json", _schema(value, param), param)


def _regex(value: Any, param: str) -> OutputGrammar:
    return OutputGrammar("regex", _text(value, param), param)


def _gbnf(value: Any, param: str) -> OutputGrammar:
    return OutputGrammar("gbnf", _text(value, param), param)


def _json_object(value: Any, param: str) -> OutputGrammar | None:
    if not isinstance(value, bool):
        raise bad_request(f"`{param}` must be true or false", code="invalid_type", param=param)
    return OutputGrammar("json_object", None, param) if value else None


def _structural_tag(value: Any, param: str) -> OutputGrammar:
    return OutputGrammar("structural_tag", _schema(value, param), param)


def of_response_format(value: Mapping[str, Any], param: str = "response_format") -> OutputGrammar | None:
    """OpenAI's `response_format`, and the `text.format` of Responses, whose fields are not nested."""
    kind = value.get("type")
    match kind:
        case "text":
            return None
        case "json_object":
            schema = value.get("schema")  # of llama.cpp
            return OutputGrammar("json_object", None, param) if schema is None else _json(schema, f"{param}.schema")
        case "json_schema":
            nested = value.get("json_schema")
            inner, place = (value, param) if nested is None else (nested, f"{param}.json_schema")
            if not isinstance(inner, dict):
                raise bad_request(f"`{place}` must be an object", code="invalid_type", param=place)
            if inner.get("schema") is None:
                raise bad_request(f"`{place}.schema` is required", code="missing_required_parameter", param=place)
            return _json(inner["schema"], f"{place}.schema")
        case "structural_tag":
            return _structural_tag(dict(value), param)
        case _:
            allowed = "text, json_object, json_schema, structural_tag"
            raise bad_request(f"`{param}.type` is {str(kind)[:40]!r}; allowed: {allowed}", param=f"{param}.type")


_KINDS: Mapping[str, _Read] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar_text,
    "json_object": _json_object,
    "structural_tag": _structural_tag,
}


def _of_structured_outputs(value: Mapping[str, Any]) -> OutputGrammar | None:
    for name in value:
        if name not in _KINDS and name not in _OPTIONS:
            param = f"structured_outputs.{name[:100]}"
            raise bad_request(f"unknown field `{param}`", code="unknown_parameter", param=param)
    options = {name: value[name] for name in _OPTIONS if value.get(name) is not None}
    for name, option in options.items():
        kind = str if name == "whitespace_pattern" else bool
        param = f"structured_outputs.{name}"
        if not isinstance(option, kind):
            raise bad_request(f"`{param}` must be a {kind.__name__}", code="invalid_type", param=param)
    if (pattern := options.get("whitespace_pattern")) is not None:
        options["whitespace_pattern"] = checked_pattern(pattern, "structured_outputs.whitespace_pattern")
    given = {name: value[name] for name in _KINDS if value.get(name) is not None}
    found = [read for name in given if (read := _KINDS[name](given[name], f"structured_outputs.{name}")) is not None]
    if len(found) > 1:
        message = f"`{found[0].param}` and `{found[1].param}` exclude each other: one grammar can be obeyed"
        raise bad_request(message, param=found[1].param)
    return _with(found[0], **options) if found else None


def _with(grammar: OutputGrammar, **options: Any) -> OutputGrammar:
    return OutputGrammar(grammar.kind, grammar.source, grammar.param, **options)


def _of_field(name: str, read: _Read) -> Callable[[StructuredFields], OutputGrammar | None]:
    def reader(fields: StructuredFields) -> OutputGrammar | None:
        value = getattr(fields, name)
        if value is None or value == "":  # llama.cpp's clients send empty texts
            return None
        found = read(value, name)
        pattern = fields.guided_whitespace_pattern
        if found is None or pattern is None:
            return found
        return _with(found, whitespace_pattern=checked_pattern(pattern, "guided_whitespace_pattern"))

    return reader


_READERS: tuple[Callable[[StructuredFields], OutputGrammar | None], ...] = (
    lambda fields: of_response_format(fields.response_format) if fields.response_format else None,
    lambda fields: _of_structured_outputs(fields.structured_outputs) if fields.structured_outputs else None,
    *(
        _of_field(name, read)
        for name, read in (
            ("guided_json", _json),
            ("guided_regex", _regex),
            ("guided_choice", _choice),
            ("guided_grammar", _grammar_text),
            ("guided_json_object", _json_object),
            ("regex", _regex),
            ("ebnf", _gbnf),
            ("json_schema", _json),
            ("grammar", _gbnf),
        )
    ),
)
