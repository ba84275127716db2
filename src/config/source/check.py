"""Checks a written value against the declaration of its option: the typed value, or a finding with what is allowed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from ...input_file import read_file
from ..diagnostics import Diagnostic, Label
from ..origin import Layer
from ..schema.options import Option
from ..schema.types import REDACTED
from ..suggest import close, did_you_mean
from ..yaml_scalars import resolve_plain
from ..yaml_writer import inline
from .check_mapping import check_mapping
from .interpolate import NAME
from .node import Node

_MAX_SECRET_BYTES = 64 << 10
_OUT_OF_RANGE = {
    "greater_than",
    "greater_than_equal",
    "less_than",
    "less_than_equal",
    "finite_number",
    "string_too_short",
    "string_pattern_mismatch",
}
_YES = {
    "yes": "true",
    "on": "true",
    "1": "true",
    "y": "true",
    "no": "false",
    "off": "false",
    "0": "false",
    "n": "false",
}
_MAX_SHOWN = 60  # characters of a value in a message


class SecretError(ValueError):
    """A secret that cannot be read; `node` is the part at fault."""

    def __init__(self, message: str, node: Node, said: str = "") -> None:
        super().__init__(message)
        self.node = node
        self.said = said


def problems(node: Node) -> list[Diagnostic]:
    """Why parts of the value are not known."""
    return [scalar.problem for scalar in node.scalars() if scalar.problem is not None]


def check(option: Option, node: Node, env: Mapping[str, str], found: list[Diagnostic], *, is_part: bool = False) -> Any:
    """The typed value of a node that is not null. After a finding, which is added to `found`, None.

    is_part: the value is merged with others, so a mapping may lack keys.
    """
    if option.status == "refused":
        return _check_refused(option, node, found)
    if (quoted := _quoted_number(option, node)) is not None:
        found.append(_quoted(option, quoted))
        return None
    try:
        raw = _secret(option, node, env) if option.is_secret else _raw(option, node)
    except SecretError as error:
        label = Label(error.node.span, error.said)
        found.append(Diagnostic(code="C113", message=str(error), path=option.path, labels=(label,)))
        return None
    try:
        value = option.adapter.validate_python(raw)
    except ValidationError as error:
        found.append(_finding(option, node, error))
        return None
    if isinstance(node.value, dict) and not option.is_secret:
        before = len(found)
        found += check_mapping(option, node, is_part=is_part)
        if len(found) > before:
            return None
    return value


def _quoted_number(option: Option, node: Node) -> Node | None:
    """A number in quotes is a text, as in the JSON Schema."""
    items = node.value if option.kind == "wholes" and isinstance(node.value, list) else [node]
    return next((item for item in items if _is_quoted_number(option, item)), None)


def _is_quoted_number(option: Option, node: Node) -> bool:
    takes_numbers = option.kind in ("whole", "wholes", "number") or (option.kind == "choice" and not option.takes_text)
    is_text = isinstance(node.value, str) and not node.is_plain and not node.is_filled_in
    return takes_numbers and is_text and _is_in_file(node) and not isinstance(resolve_plain(node.text or ""), str)


def _is_in_file(node: Node) -> bool:
    return node.span.source.layer is Layer.FILE


def _quoted(option: Option, node: Node) -> Diagnostic:
    return Diagnostic(
        code="C104",
        message=f'`{option.path}` is the text "{node.text}"',
        path=option.path,
        labels=(Label(node.span, f"allowed: {option.allowed}; write it without quotes"),),
    )


def _check_refused(option: Option, node: Node, found: list[Diagnostic]) -> Any:
    """A refused option takes only values that describe what this build does; everything else is refused."""
    with contextlib.suppress(ValidationError):
        value = option.adapter.validate_python(_raw(option, node))
        if value in option.accepted and not _is_quoted_number(option, node):
            return value
    shown = f"{option.path}: {node.text}" if node.text is not None and not option.is_secret else option.path
    said = option.reason
    if accepted := [inline(value) for value in option.accepted if value not in (None, (), {}, "")]:
        said += f"; it takes {' or '.join(accepted)}"
    found.append(
        Diagnostic(
            code="C118",
            message=f"`{shown[:_MAX_SHOWN]}` is not available in this build",
            path=option.path,
            labels=(Label(node.span, said),),
        )
    )
    return None


def _raw(option: Option, node: Node) -> Any:
    """The input of pydantic: a text as it was written where the option takes texts."""
    if option.takes_text:
        if isinstance(node.value, list):
            return [child.text if child.text is not None and child.value is not None else None for child in node.value]
        return node.plain() if node.text is None else node.text
    if option.kind == "choice" and isinstance(node.value, bool):
        return node.text  # true is not the choice 1
    return node.plain()


def _secret(option: Option, node: Node, env: Mapping[str, str]) -> Any:
    if isinstance(node.value, list) and option.kind == "texts":
        return tuple(_one_secret(child, env) for child in node.value)
    return _one_secret(node, env)


def _one_secret(node: Node, env: Mapping[str, str]) -> SecretStr:
    secret = _read_secret(node, env)
    if fault := _fault_in_header(secret.get_secret_value()):
        raise SecretError(f"the secret {fault}", node, "it is sent in an HTTP header, which cannot contain this")
    return secret


def _fault_in_header(text: str) -> str:
    """Why a text cannot be sent as `Authorization: Bearer TEXT`; empty if it can."""
    if not text.strip():
        return "is blank"
    if "\n" in text or "\r" in text:
        return "contains a line break"
    if not text.isascii() or not text.isprintable():
        return "contains a character that is not printable ASCII"
    return "begins or ends with a blank" if text != text.strip() else ""


def _read_secret(node: Node, env: Mapping[str, str]) -> SecretStr:
    if isinstance(node.value, dict) and len(node.value) == 1:
        ((kind, child),) = node.value.items()
        if kind == "env" and child.text and isinstance(child.value, str):
            if not NAME.fullmatch(child.text):
                raise SecretError("no variable has such a name", child, "`env` takes a variable's name, not its value")
            if not env.get(child.text):
                state = "not set" if child.text not in env else "empty"
                name = "named by a variable" if child.is_filled_in else f"`{child.text}`"
                raise SecretError(f"the variable {name} is {state}", child, "the secret is read from it")
            return SecretStr(env[child.text])
        if kind == "file" and child.text and isinstance(child.value, str):
            return SecretStr(_secret_file(child))
    if node.text is None or node.is_null:
        raise SecretError("not a secret", node, "allowed: a text, {env: NAME} or {file: path}")
    if not node.text:
        raise SecretError("the secret is empty", node, "it would let everybody in; write null to do without one")
    if node.text == REDACTED:  # printed by `engine config`, and now in a file or a script
        raise SecretError("the asterisks stand for a secret and are none", node, "write {env: NAME} or {file: path}")
    return SecretStr(node.text)


def _secret_file(node: Node) -> str:
    path = node.span.source.folder / Path(os.path.expanduser(node.text or ""))
    name = "" if node.is_filled_in else f" `{path}`"  # `{file: ${KEY}}` may hold the key itself
    try:
        text = read_file(path, _MAX_SECRET_BYTES).decode().strip()
    except (OSError, ValueError) as error:
        reason = (error.strerror or "cannot be read").lower() if isinstance(error, OSError) else "no text"
        raise SecretError(f"the secret file{name}: {reason}", node, "the secret is read from it") from None
    if not text:
        raise SecretError(f"the secret file{name} is empty", node)
    return text


def _finding(option: Option, node: Node, error: ValidationError) -> Diagnostic:
    """One finding for all errors of pydantic, which has one for each member of a union."""
    details = error.errors(include_url=False)
    at = node
    if isinstance(node.value, list):
        index = next((part for detail in details for part in detail["loc"] if isinstance(part, int)), None)
        if index is not None and index < len(node.value):
            at = node.value[index]
    is_scalar = not isinstance(at.value, dict | list)
    refused = option.refused.get(at.text or "") if is_scalar else None
    if refused is not None:
        return Diagnostic(
            code="C118",
            message=f"`{option.path}: {at.text}` is not available in this build",
            path=option.path,
            labels=(Label(at.span, refused),),
        )
    kinds = {detail["type"] for detail in details}
    is_choice = option.kind == "choice" and is_scalar and not isinstance(at.value, bool)
    code = "C107" if kinds & _OUT_OF_RANGE or is_choice else "C104"
    suggestions = _choices_like(option, at) if is_scalar else []
    said = f"allowed: {', '.join(option.limits)}" if "less_than_equal" in kinds else f"allowed: {option.allowed}"
    if suggestions:
        said += f"; {did_you_mean(suggestions)}"
    notes = {str(detail["ctx"]["error"]) for detail in details if detail["type"] == "value_error"}
    return Diagnostic(
        code=code,
        message=f"`{option.path}` is {_shown(option, at)}",
        path=option.path,
        labels=(Label(at.span, said),),
        notes=tuple(sorted(note for note in notes if not note.startswith("not a"))),
    )


def _choices_like(option: Option, node: Node) -> list[str]:
    text = node.text or ""
    if option.kind == "flag":
        return [_YES[text.lower()]] if text.lower() in _YES else []
    known = [*map(str, option.choices), *option.words]
    return close(text, known) if len(known) > 1 else []


def _shown(option: Option, node: Node) -> str:
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, list):
        return "a list"
    if option.is_secret:
        return "not a secret"
    text = (node.text or "")[:_MAX_SHOWN]
    return f'"{text}"' if isinstance(node.value, str) else text
