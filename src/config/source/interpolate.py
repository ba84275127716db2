"""`${VAR}` in the texts of a manifest, filled in from the environment.

Forms: ${VAR}, ${VAR:-default}, ${VAR:?message}, and $$ for one dollar sign. A default may hold further forms.
A dollar sign before anything else stands for itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMES_ONLY = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(:\?[^}]*)?\}")
_FORM_NAME = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")
_FORM_START = re.compile(r"\$(?=[${])")
_MAX_DEPTH = 8
_MAX_LENGTH = 1 << 20  # characters of a filled-in text


class InterpolationError(ValueError):
    """`code` is the finding's; `start` and `end` are the part of the text at fault."""

    def __init__(self, code: str, message: str, start: int, end: int, said: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.start = start
        self.end = end
        self.said = said


def interpolate(text: str, env: Mapping[str, str]) -> str:
    """`text` with every form replaced. Raises InterpolationError."""
    return _fill(text, env, 0, 0) if "$" in text else text


def escape(value: Any) -> Any:
    """A value that `interpolate` turns into `value` again: `$` is doubled, in all texts of a list or mapping."""
    if isinstance(value, str):
        return _FORM_START.sub("$$", value)
    if isinstance(value, dict):
        return {key: escape(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [escape(item) for item in value]
    return value


def names_in(text: str) -> tuple[str, ...]:
    """The variables that the forms in a text name, including defaults; also where `$$` makes a text of a form."""
    return tuple(_FORM_NAME.findall(text))


def names_only(text: str) -> bool:
    """Whether the text is one `${VAR}` or `${VAR:?message}`: then it shows no secret."""
    return bool(only_name(text))


def only_name(text: str) -> str:
    """The variable's name if the text is one `${VAR}` or `${VAR:?message}`; else empty."""
    found = _NAMES_ONLY.fullmatch(text)
    return found[1] if found else ""


def _fill(text: str, env: Mapping[str, str], offset: int, depth: int) -> str:
    parts: list[str] = []
    position = length = 0
    while (dollar := text.find("$", position)) >= 0:
        parts.append(text[position:dollar])
        following = text[dollar + 1 : dollar + 2]
        if following == "$":
            parts.append("$")
            position = dollar + 2
        elif following == "{":
            end = _closing(text, dollar)
            if end < 0 or depth >= _MAX_DEPTH:
                message = "`${` is never closed" if end < 0 else f"more than {_MAX_DEPTH} levels of `${{`"
                raise InterpolationError("C112", message, offset + dollar, offset + len(text))
            parts.append(_value(text, dollar, end, env, offset, depth))
            position = end + 1
        else:
            parts.append("$")
            position = dollar + 1
        length += sum(map(len, parts[-2:]))
        if length > _MAX_LENGTH:
            raise InterpolationError("C109", f"grows past {_MAX_LENGTH} characters", offset, offset + len(text))
    return "".join(parts) + text[position:]


def _closing(text: str, dollar: int) -> int:
    """Index of the brace that closes the form at `dollar`; -1 if there is none."""
    depth, position = 0, dollar
    while position < len(text):
        if text.startswith("${", position):
            depth += 1
            position += 2
        elif text[position] == "}":
            depth -= 1
            if not depth:
                return position
            position += 1
        else:
            position += 1
    return -1


def _value(text: str, dollar: int, end: int, env: Mapping[str, str], offset: int, depth: int) -> str:
    body = text[dollar + 2 : end]
    start, stop = offset + dollar, offset + end + 1
    match = NAME.match(body)
    rest = body[match.end() :] if match else ""
    if match is None or (rest and not rest.startswith((":-", ":?"))):
        raise InterpolationError(
            "C112",
            "a form of `${}` cannot be read",  # not quoted: what it holds may be a secret
            start,
            stop,
            "forms: ${VAR} ${VAR:-default} ${VAR:?message}",
        )
    name, value = match[0], env.get(match[0])
    if rest.startswith(":-") and not value:
        return _fill(rest[2:], env, offset + dollar + 2 + match.end() + 2, depth + 1)
    if rest.startswith(":?") and not value:
        state = "not set" if value is None else "empty"
        raise InterpolationError("C111", f"the variable `{name}` is {state}", start, stop, rest[2:].strip())
    if value is None:
        raise InterpolationError(
            "C111", f"the variable `{name}` is not set", start, stop, f"set it, or write ${{{name}:-default}}"
        )
    return value
