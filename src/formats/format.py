"""The declaration of a format, as data. What each part means for reading and for generating is written here only.

White space beside a marker belongs to the marker: it is in no event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Ids = Literal["random", "written", "nine"]  # made by the server; the model writes `functions.f:0`; 9 letters and digits


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """Markers of reasoning, which begins only at the start of an answer, after white space or after calls."""

    begin: str
    end: str
    is_default: bool = False  # the answer starts within it, unless the prompt ends with either marker


@dataclass(frozen=True, slots=True)
class JsonCall:
    """A call as one JSON object: {"name": "f", "arguments": {...}}. Several may follow each other, or be an array."""

    name_key: str = "name"  # empty where the name is the only key: {"f": {...}}
    arguments_key: str = "arguments"
    other_arguments_keys: tuple[str, ...] = ("arguments", "parameters")  # read as well, never generated
    is_array: bool = False  # generated as an array: [{...}, {...}]


@dataclass(frozen=True, slots=True)
class NamedJson:
    """A name, then the arguments as JSON: prefix f name_end {...} suffix."""

    name_end: str
    id_begin: str = ""  # an id may be written between the name and name_end, never generated
    prefix: str = ""
    suffix: str = ""
    reads_json_calls: bool = False  # JSON objects with name and arguments are read as well, never generated


@dataclass(frozen=True, slots=True)
class XmlCall:
    """A name, then each argument as an element, typed by the schema of the tool: a string raw, another type as JSON.

    name_end and key_end may be empty where the next marker ends the name or the key.
    """

    name_begin: str
    name_end: str
    end: str  # of the call
    key_begin: str
    key_end: str
    value_end: str
    value_begin: str = ""  # after the key, where the key has a separate element
    string_attribute: bool = False  # the key is followed by string="true" or string="false", which decides the type
    type_attribute: bool = False  # the key is followed by type="string" or another type of JSON, which decides it
    index_attribute: bool = False  # the name is followed by index="1", the number of the call
    tag_end: str = ">"  # after attributes
    pad: str = ""  # around a value, and belonging to its markers
    line: str = "\n"  # between elements
    reads_cdata: bool = False  # a value may be in a section of XML: <![CDATA[...]]>, never generated


@dataclass(frozen=True, slots=True)
class Pythonic:
    """Calls of Python functions with literal arguments: f(a=1, b='x')."""

    is_list: bool = True  # within brackets, separated by commas; else on lines


@dataclass(frozen=True, slots=True)
class BareKeys:
    """call:f{key:value}, where keys are not quoted and strings stand between quotes of their own."""  # words: ok

    quote: str
    prefix: str = "call:"


@dataclass(frozen=True, slots=True)
class Harmony:
    """Messages with channels: <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>."""


Style = JsonCall | NamedJson | XmlCall | Pythonic | BareKeys | Harmony


@dataclass(frozen=True, slots=True)
class CallMarkers:
    """Markers around calls, and how one is written between."""

    style: Style
    begin: str = ""
    end: str = ""
    before: str = ""  # white space that the model writes after `begin`, and
    after: str = ""  # before `end`
    between: str = ""  # two calls
    section: tuple[str, str] | None = None  # markers around all calls of an answer
    section_space: str = ""  # after the first of them and before the second
    other_markers: tuple[tuple[str, str], ...] = ()  # around calls of the same style: read as well, never generated
    others: tuple[CallMarkers, ...] = ()  # other ways in which models write calls: read as well, never generated
    bare: str = ""  # text from this character on may be a call without markers, if it names a tool of the request
    ids: Ids = "random"


@dataclass(frozen=True, slots=True)
class Format:
    """How a model family writes reasoning and calls."""

    name: str
    description: str  # the models that write so
    source: str = ""  # address of a chat template, or of a description, that the declaration follows
    reasoning: ReasoningMarkers | None = None
    calls: CallMarkers | None = None
    answer: tuple[str, ...] = ()  # markers around the content: they are left out
    tokens: tuple[str, ...] = ()  # special tokens that are parts of the markers
    parser: Callable[..., Any] | None = None  # a class of a user, instead of AnswerParser

    @property
    def special_tokens(self) -> frozenset[str]:
        """Markers that may be special tokens: the detokenizer must keep them."""
        found = {*self.answer, *self.tokens}
        if self.reasoning:
            found |= {self.reasoning.begin, self.reasoning.end}
        if self.calls:
            found |= {self.calls.begin, self.calls.end, *(self.calls.section or ())}
            found |= {marker for pair in self.calls.other_markers for marker in pair}
            for way in self.calls.others:
                found |= {way.begin, way.end, *(way.section or ())}
        return frozenset(found - {""})
