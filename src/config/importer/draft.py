"""A manifest to be: values that it can have, and everything else that was written with the reason why not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..source.node import Node
from .program_names import Engine

Kind = Literal["refused", "unreadable", "unknown", "undecided", "no counterpart", "needless"]


@dataclass(frozen=True, slots=True)
class Left:
    """Something written that is not in effect. `path` and `node` are the option and the value it would have."""

    written: str
    kind: Kind
    reason: str
    path: str = ""
    node: Node | None = None
    suggestions: tuple[str, ...] = ()


@dataclass(slots=True)
class Draft:
    """Values and secrets by path, in no order; remarks on them; what is left; notes on the whole.

    secrets: names of the environment variables that are to hold them.
    """

    engine: Engine
    values: dict[str, Node] = field(default_factory=dict)
    secrets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)
    left: list[Left] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def remark(self, path: str, said: str) -> None:
        known = self.remarks.setdefault(path, [])
        if said not in known:
            known.append(said)

    def leave(self, left: Left) -> None:
        if left not in self.left:
            self.left.append(left)
