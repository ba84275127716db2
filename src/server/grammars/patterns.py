"""Regular expressions of JSON schemas, which are ECMA-262's, for llguidance, which has Rust's notation.

Both are the same for nearly all patterns. What means something else in Rust is rewritten or refused; what Rust does not
know, such as look-around, is refused by llguidance.
"""

from __future__ import annotations

import re

_REWRITTEN = {".": r"[^\n\r\u2028\u2029]", r"\S": r"[^\s\ufeff]"}
_TOKENS = re.compile(r"\\(?:[xuU]\{|.)|\[\^?\]?|\(\?<?.|.", re.DOTALL)
_OTHER_ESCAPES = {r"\a", r"\A", r"\z", r"\U", r"\x{", r"\u{", r"\U{"}


def rust_pattern(pattern: str) -> str:
    """Raises ValueError for what the two notations read differently."""
    parts: list[str] = []
    is_in_class = False
    for part in _TOKENS.findall(pattern):
        if part in _OTHER_ESCAPES:
            raise ValueError(f"`{part}`, which is not defined in ECMA-262")
        if is_in_class:
            if part[0] == "[":
                raise ValueError("`[` within brackets: write `\\[`")
            if parts[-1] == part and part in "-&~":
                raise ValueError(f"`{part}{part}` within brackets: write `\\{part}`")
            is_in_class = part != "]"
        elif part[0] == "[":
            if part.endswith("]"):
                raise ValueError(f"`{part}`, which matches nothing or everything in ECMA-262")
            is_in_class = True
        elif part.startswith("(?") and part[2] not in ":=!<":
            raise ValueError(f"`{part}`, which is not defined in ECMA-262")
        parts.append(part if is_in_class else _REWRITTEN.get(part, part))
    return "".join(parts)
