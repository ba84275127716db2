"""The declaration of a format, as data. What each part means for reading and for generating is written here only.

White space beside a marker belongs to the marker: it is in no event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Ids = Literal["random", "written", "nine"]  # made by the server; written by the model; 9 letters and digits


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """Where reasoning begins and ends. It begins only at the start of an answer, after white space or after calls."""

    begin: str
    end: str
    is_default: bool = False  # the answer starts within it, unless the prompt ends with either marker


@dataclass(frozen=True, slots=True)
class JsonCall:
    """A call as one JSON object: {"name": "f", "arguments": {...}}. Several may follow each other, or be an array."""

    name_key: str = "name"
    arguments_key: str = "arguments"
    other_arguments_keys: tuple[str, ...] = ()  # read as well, never generated
    is_array: bool = False  # generated as an array: [{...}, {...}]


Style = JsonCall


@dataclass(frozen=True, slots=True)
class CallMarkers:
    """Where calls begin and end, and how one is written between."""

    style: Style
    begin: str
    end: str
    before: str = ""  # white space that the model writes after `begin`, and
    after: str = ""  # before `end`
    between: str = "\n"  # two calls
    section: tuple[str, str] | None = None  # markers around all calls of an answer
    ids: Ids = "random"


@dataclass(frozen=True, slots=True)
class Format:
    """How a model family writes reasoning and calls."""

    name: str
    description: str  # the models that write so
    reasoning: ReasoningMarkers | None = None
    calls: CallMarkers | None = None

    @property
    def special_tokens(self) -> frozenset[str]:
        """Markers that may be special tokens: the detokenizer must keep them."""
        found: set[str] = set()
        if self.reasoning:
            found |= {self.reasoning.begin, self.reasoning.end}
        if self.calls:
            found |= {self.calls.begin, self.calls.end, *(self.calls.section or ())}
        return frozenset(found - {""})
