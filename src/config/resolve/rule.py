"""The format of a rule across options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ..exit_codes import EXIT_INVALID_CONFIGURATION
from .values import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`message` and `fixes` are templates: {NAME} is an option, or a value of message_values.py.

    Attributes:
        fields: options that the rule is about; their lines are shown. It is checked once all of them are decided.
        is_broken: whether the deployment breaks it, or what is wrong as a text, which is {problem} in the templates.
        why: the reason, for `engine explain`.
        needs_model: the rule depends on the model's files.
        about_machine: the rule depends on this machine; it may hold on another one.
        said: further values of the templates.
    """

    id: str
    title: str
    fields: tuple[str, ...]
    is_broken: Callable[[Values], bool | str]
    message: str
    why: str
    fixes: tuple[str, ...] = ()
    severity: Literal["error", "warning"] = "error"
    needs_model: bool = False
    about_machine: bool = False
    exit_code: int = EXIT_INVALID_CONFIGURATION
    said: Callable[[Values], dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class StatedRule:
    """A rule that cannot be broken.

    Attributes:
        why: what makes it hold: the refusal or the description of an option, another rule, or a sentence.
        checked_by: id of the rule that it is part of, if there is one.
        is_derived: all but a sentence. The page of an option does not list such a rule, which would repeat it.
    """

    id: str
    title: str
    fields: tuple[str, ...]
    why: str
    is_derived: bool = True
    checked_by: str = ""
