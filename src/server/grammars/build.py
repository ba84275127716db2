"""One grammar of llguidance from what a request wants; the whole work of the isolated job `grammar`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import llguidance

from ..protocol.errors import bad_request
from ..protocol.structured import MAX_GRAMMAR_CHARS, too_large
from .compile import byte_tokens, problem_of
from .json_schema import grammar_of_schema, obeyable
from .lark import of_choices, of_gbnf, of_regex
from .structural_tag import of_structural_tag


def build(job: Mapping[str, Any]) -> str:
    """The grammar, compiled once to know that it can be.

    job: the fields of OutputGrammar; `special_tokens` of the model.
    Raises ApiError 400: it is wrong, too large, or contains what cannot be obeyed.
    """
    kind, source, param = job["kind"], job["source"], job["param"]
    options: dict[str, Any] = {
        "whitespace_pattern": job["whitespace_pattern"],
        "is_compact": job["disable_any_whitespace"],
        "is_closed": job["disable_additional_properties"],
    }
    special_tokens: Sequence[str] = job["special_tokens"]

    def of_schema(schema: Any, place: str) -> str:
        found = json.loads(grammar_of_schema(schema, f"{param}#{place}", **options))
        return json.dumps(found["grammars"][0]["json_schema"])

    match kind:
        case "json":
            return _bounded(grammar_of_schema(source, param, **options), param)
        case "obeyable_json":
            return _bounded(json.dumps(obeyable(source, param)), param)
        case "json_object":
            return grammar_of_schema({"type": "object"}, param, **options)
        case "regex":
            grammar = llguidance.LLMatcher.grammar_from_regex(of_regex(source, param))
        case "choice":
            grammar = of_choices(source, param)
        case "gbnf":
            grammar = of_gbnf(source, param)
        case "structural_tag":
            grammar = of_structural_tag(source, of_schema, special_tokens, param)
        case _:
            grammar = source
    _bounded(grammar, param)
    vocab_size = job["vocab_size"] if "<[" in grammar else 0  # else no id is named, and a small one is made sooner
    if (problem := problem_of(grammar, byte_tokens(tuple(special_tokens), vocab_size))) is not None:
        raise bad_request(f"`{param}` cannot be obeyed: {problem}", code="grammar_unsupported", param=param)
    return grammar


def _bounded(grammar: str, param: str) -> str:
    if len(grammar) > MAX_GRAMMAR_CHARS:
        raise too_large(param)
    return grammar
