"""Whitespace between the tokens of JSON. It is bounded: with no limit, a model can write it until the context ends."""

from __future__ import annotations

import re

from .errors import bad_request

# One space, as after a comma, or a line break with its indentation. More would be an endless loop at each token.
DEFAULT = r"( |\n[ \t]{0,32})?"
_MAX_CHARS = 200
_CHARACTER = r"(?:\\[snrt]|\\x(?:20|0[9aAdD])|[ \t\n\r])"
_ALLOWED = re.compile(rf"(?:{_CHARACTER}|\[{_CHARACTER}+\]|\((?:\?:)?|[)|?*+]|\{{\d{{1,4}}(?:,\d{{0,4}})?\}})*")


def checked_pattern(pattern: str, param: str) -> str:
    r"""A pattern that a request brings. Raises ApiError if it may match anything but whitespace of JSON.

    `\s` becomes the four characters that are whitespace in JSON.
    """
    if len(pattern) > _MAX_CHARS or _ALLOWED.fullmatch(pattern) is None:
        raise bad_request(f"`{param}` may match spaces, tabs and line breaks only", param=param)
    parts, is_in_class = [], False
    for part in re.findall(r"\\.|.", pattern, re.DOTALL):
        is_in_class = (is_in_class or part == "[") and part != "]"
        parts.append((r" \n\r\t" if is_in_class else r"[ \n\r\t]") if part == r"\s" else part)
    return "".join(parts)
