"""What a rule across options is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..errors import EXIT_INVALID_CONFIGURATION
from .values import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`message` and `fixes` are templates over option names and the numbers of `Values.numbers`.

    Attributes:
        fields: options that the rule binds; their lines are shown. A rule waits until all of them are decided.
        why: the reason, for `engine explain`.
        needs_model: the rule compares with the model's files.
        about_machine: the rule compares with this machine; where the deployment runs elsewhere it may hold.
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
    """A rule that cannot be broken, and what makes it hold."""

    id: str
    title: str
    fields: tuple[str, ...]
    why: str
