"""Decides which tools an answer may or must call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as a grammar needs it: its name, the JSON schema of its arguments, whether calls must obey the schema."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """must_call: the answer is calls; else it may be text as well. names: the tools it may call, all if None."""

    must_call: bool = False
    names: frozenset[str] | None = None
    is_named: bool = False  # one call of the one tool


AUTO = Choice()
REQUIRED = Choice(must_call=True)


def named(name: str) -> Choice:
    return Choice(must_call=True, names=frozenset({name}), is_named=True)
