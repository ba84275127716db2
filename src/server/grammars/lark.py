"""Lark for llguidance from the other ways to say a grammar: choices, GBNF and EBNF, structural tags."""

from __future__ import annotations

import json
from collections.abc import Sequence

from llguidance.gbnf_to_lark import gbnf_to_lark

from ..protocol.errors import bad_request

MAX_CHOICES = 10_000
MAX_TEXT = 1 << 16  # characters of one literal or pattern: with 1 M each mask would take 0.1 s, of all sequences' steps


def literal(text: str) -> str:
    """A text as a string of Lark."""
    return json.dumps(text, ensure_ascii=False)


def check_text(text: str, param: str) -> None:
    if len(text) > MAX_TEXT:
        message = f"`{param}` is too large: one of its texts has more than {MAX_TEXT} characters"
        raise bad_request(message, code="grammar_too_complex", param=param)


def of_choices(texts: Sequence[str], param: str) -> str:
    if len(texts) > MAX_CHOICES:
        raise bad_request(f"`{param}` has more than {MAX_CHOICES} texts", code="array_above_max_length", param=param)
    for text in texts:
        check_text(text, param)
    return "start: " + " | ".join(map(literal, texts))


def of_gbnf(text: str, param: str) -> str:
    """GBNF of llama.cpp, and the EBNF of xgrammar, which is the same with few additions. Raises ApiError."""
    try:
        return gbnf_to_lark(text)
    except RecursionError:
        raise bad_request(f"`{param}` is too complex", code="grammar_too_complex", param=param) from None
    except Exception as error:  # the converter's own, or an IndexError at the end of the text
        problem = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise bad_request(f"`{param}` is not a grammar in GBNF: {problem}", param=param) from None


def of_regex(pattern: str, param: str) -> str:
    """The whole answer matches, so anchors at the ends say nothing."""
    check_text(pattern, param)
    pattern = pattern.removeprefix("^")
    if pattern.endswith("$") and (len(pattern) - len(pattern[:-1].rstrip("\\"))) % 2 == 1:
        pattern = pattern[:-1]
    return pattern
