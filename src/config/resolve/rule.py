"""The format of a rule across options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..exit_codes import EXIT_INVALID_CONFIGURATION
from .values import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`message` and `fixes` are templates with option names and the values of `Values.numbers`.

    Attributes:
        fields: options that the rule is about; their lines are shown. It is checked once all of them are decided.
        why: the reason, for `engine explain`.
        needs_model: the rule depends on the model's files.
        about_machine: the rule depends on this machine; it may hold on another one.
    """

    id: str
    title: str
    fields: tuple[str, ...]
    is_broken: Callable[[Values], bool]
    message: str
    why: str
    fixes: tuple[str, ...] = ()
    severity: Literal["error", "warning"] = "error"
    needs_model: bool = False
    about_machine: bool = False
    exit_code: int = EXIT_INVALID_CONFIGURATION


@dataclass(frozen=True, slots=True)
class StatedRule:
    """A rule that cannot be broken, and the reason why it holds."""

    id: str
    title: str
    fields: tuple[str, ...]
    why: str
