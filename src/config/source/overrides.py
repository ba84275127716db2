"""Options on the command line.

    --max-num-seqs 64          --max_num_seqs=64              flat
    --scheduler.max-num-seqs 64                               by section
    --enable-prefix-caching    --no-enable-prefix-caching     true, false
    --hf-overrides '{"a": 1}'  --hf-overrides.rope_theta 1e6  JSON, whole and by key; parts are merged in order
    --served-model-name a b    --served-model-name+ c         a list; + adds to it, += takes several with commas
    --max-num-seqs!                                           unset: values of weaker layers are ignored
    -tp 2  -O3  -O.level=3  --speculative-config '{...}'      short names; whole sections, like mappings

Every word has a meaning: one that is not an option, a flag of the command or a file is an error with suggestions.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..diagnostics import Diagnostic, Label
from ..origin import Layer
from ..schema.options import Option, options_of, sections
from ..source_text import SourceText, Span
from ..suggest import close, did_you_mean, normal
from ..yaml_scalars import resolve_plain
from .flags import Flag, all_flags, flat_options, read_flag
from .layer import LayerSource, place
from .node import Node
from .secrets import looks_secret, mentions_secret
from .values import json_or_text, read_text, section_node

_NUMBER = re.compile(r"-[0-9.]")
FLAG_NAME = re.compile(r"[-\w.+!]*")  # of a flag: `=`, or a typo such as `:`, and a secret may follow
_FILE_ENDINGS = (".yaml", ".yml")
_BOOLEANS = {"true", "false", "True", "False", "TRUE", "FALSE"}


@dataclass(frozen=True, slots=True)
class Override:
    """A flag with its values and the words it was written with."""

    flag: Flag
    values: tuple[str, ...]
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Words that belong together: an option with its values, a flag that cannot be read, or a word of the command."""

    words: tuple[str, ...]
    override: Override | None = None
    finding: Diagnostic | None = None


def parts_of(words: Sequence[str], own: Mapping[str, bool]) -> Iterator[Part]:
    """A command line in order, every word in exactly one part.

    own: the command's flags, each with whether it takes a value.
    """
    index = 0
    while index < len(words):
        part = _part(words, index, own)
        yield part
        index += len(part.words)


def _part(words: Sequence[str], index: int, own: Mapping[str, bool]) -> Part:
    word = words[index]
    if word == "--":
        return Part(tuple(words[index:]))
    name = word.partition("=")[0]
    if name in own or not word.startswith("-") or word == "-":
        count = 2 if own.get(name) and "=" not in word else 1
        return Part(tuple(words[index : index + count]))
    flag = read_flag(word)
    if flag is None:
        most = len(words) if looks_secret(name) else index + 2
        end = index + 1
        while "=" not in word and end < min(most, len(words)) and not words[end].startswith("-"):
            if words[end].endswith(_FILE_ENDINGS):
                break
            end += 1  # probably its value, which is not shown: it may be a secret
        return Part(tuple(words[index:end]), finding=_unknown(words, index, own))
    values = _values(flag, words, index + 1)
    if isinstance(values, Diagnostic):
        is_dashed = flag.option.is_secret and index + 1 < len(words) and read_flag(words[index + 1]) is None
        return Part(tuple(words[index : index + 1 + is_dashed]), finding=values)  # a secret may begin with dashes
    end = index + 1 + (len(values) if flag.attached is None else 0)
    written = tuple(words[index:end])
    return Part(written, Override(flag, tuple(values), written))


def split_words(
    words: Sequence[str], own: Mapping[str, bool], found: list[Diagnostic]
) -> tuple[list[str], list[str], list[Override]]:
    """Part a command line into the command's own words, the words that set options, and those options.

    found: gets a finding for every unknown flag and every missing value.
    """
    mine: list[str] = []
    theirs: list[str] = []
    overrides: list[Override] = []
    for part in parts_of(words, own):
        if part.finding is not None:
            found.append(part.finding)
        elif part.override is not None:
            theirs += part.words
            overrides.append(part.override)
        else:
            mine += part.words
    return mine, theirs, overrides


def _values(flag: Flag, words: Sequence[str], index: int) -> list[str] | Diagnostic:
    """The flag's values; those not attached are the words from `index` on. A finding if some are missing."""
    if flag.unsets or flag.is_negated:
        if flag.attached is not None:
            return _misused(flag, "takes no value", "leave out the value")
        return []
    if flag.attached is not None:
        return [flag.attached]
    following = words[index] if index < len(words) else None
    if flag.option.kind == "flag":
        return [following] if following is not None and following in (*_BOOLEANS, *flag.option.choices) else []
    if flag.option.is_list and not flag.appends:
        values: list[str] = []
        for word in words[index:]:
            if (word.startswith("-") and not _NUMBER.match(word)) or (values and word.endswith(_FILE_ENDINGS)):
                break
            values.append(word)
    else:
        values = [following] if following is not None and not following.startswith("--") else []
    return values or _misused(flag, "needs a value", f"allowed: {flag.option.allowed}")


class OverrideSource(LayerSource):
    """What flags set, later ones over earlier ones."""

    def __init__(self, overrides: Sequence[Override]) -> None:
        super().__init__()
        before: dict[str, Override] = {}
        for override in overrides:
            node = self._node(override)
            if node is None:
                continue
            option = override.flag.option
            first = before.get(option.path)
            if first is not None and option.repeats and isinstance(node.value, list):
                node.appends = True
            if first is not None and not (node.appends or first.flag.unsets or option.kind == "mapping"):
                self.found.append(_twice(first, override))
            if option.path in sections() and node.is_null:
                for part in options_of(option.path):
                    place(self.trees, part, replace(node))
            else:
                place(self.trees, option, node)
            before[option.path] = override

    def _node(self, override: Override) -> Node | None:
        flag, option = override.flag, override.flag.option
        may_hold = option.kind == "mapping" and any(map(mentions_secret, override.values))
        span = _span(override.words, flag, option.is_secret or may_hold)
        if flag.unsets or (option.path in sections() and override.values in (("None",), ("",))):
            node = Node(None, span, text="null", unsets=True)
        elif flag.appends:
            if not option.is_list and not flag.keys:
                self.found.append(_misused(flag, "takes one value, so nothing can be added", "leave out the +"))
                return None
            node = Node(_items(option, override.values, span), span, appends=True)
        elif option.kind == "flag":
            text = "false" if flag.is_negated else (override.values or ("true",))[0]
            node = Node(resolve_plain(text), span, text=text, is_plain=True)
        elif flag.keys:
            node = json_or_text(override.values[0], span)
        elif option.path in sections():
            return section_node(option.path, json_or_text(override.values[0], span), flag.spelling, self.found)
        elif option.is_list and len(override.values) > 1:
            node = Node([_item(option, value, span) for value in override.values], span)
        else:
            try:
                node = read_text(option, override.values[0], span)
            except ValueError as error:
                message = f"`{flag.spelling}` is not valid JSON: {error}"
                label = Label(span, f"allowed: {option.allowed}, written as JSON")
                self.found.append(Diagnostic(code="C121", message=message, path=option.path, labels=(label,)))
                return None
        for key in reversed(flag.keys):
            node = Node({key: node}, span)
        return node


def _items(option: Option, values: Sequence[str], span: Span) -> list[Node]:
    """What `+` adds: a JSON list, or parts between commas."""
    items: list[Node] = []
    for value in values:
        whole = json_or_text(value, span)
        parts = value.split(",")
        items += whole.value if isinstance(whole.value, list) else [_item(option, part, span) for part in parts]
    return items


def _item(option: Option, text: str, span: Span) -> Node:
    return Node(text, span, text=text) if option.kind == "texts" else json_or_text(text, span)


def command_line(words: Sequence[str], found: list[Diagnostic]) -> OverrideSource:
    """The layer of these words, all of which must belong to options."""
    mine, _, overrides = split_words(words, {}, found)
    for word in mine:
        text = SourceText(Layer.COMMAND_LINE, word, [word])
        label = Label(Span(text, 1, 1, 1, len(word) + 1), "options start with --")
        found.append(Diagnostic(code="C121", message=f"`{word}` belongs to no option", labels=(label,)))
    return OverrideSource(overrides)


def _span(words: Sequence[str], flag: Flag, is_secret: bool) -> Span:
    """The place of the values; of the flag itself where it has none."""
    shown = [shlex.quote(word) if " " in word or not word else word for word in words]
    line = " ".join(shown).replace("\n", " ")
    text = SourceText(Layer.COMMAND_LINE, flag.spelling, [line])
    start = len(flag.spelling) + 2 if len(line) > len(flag.spelling) + 1 else 1
    span = Span(text, 1, start, 1, len(line) + 1)
    if is_secret:
        text.hide(span)
    return span


def _misused(flag: Flag, problem: str, said: str) -> Diagnostic:
    text = SourceText(Layer.COMMAND_LINE, flag.spelling, [flag.spelling])
    label = Label(Span(text, 1, 1, 1, len(flag.spelling) + 1), said)
    return Diagnostic(code="C121", message=f"`{flag.spelling}` {problem}", path=flag.option.path, labels=(label,))


def _twice(first: Override, second: Override) -> Diagnostic:
    labels = tuple(
        Label(_span(override.words, override.flag, override.flag.option.is_secret), said)
        for override, said in ((second, "this one is used"), (first, "this one is ignored"))
    )
    path = second.flag.option.path
    if path == "config":
        labels = tuple(Label(label.span, "one file at most") for label in labels)
        return Diagnostic(code="C121", message="`--config` is given twice", path=path, labels=labels)
    return Diagnostic(code="C122", severity="warning", message=f"`{path}` is set twice", path=path, labels=labels)


def _unknown(words: Sequence[str], index: int, own: Mapping[str, bool]) -> Diagnostic:
    name = FLAG_NAME.match(words[index])[0].rstrip("+!")  # type: ignore[index]
    last = name.rpartition(".")[2]
    suggestions = close(name, [*own, *all_flags()])
    if not suggestions and last != name and (option := flat_options().get(normal(last))):
        suggestions = [option.flags[-1]]
    text = SourceText(Layer.COMMAND_LINE, name, [name])  # without the value: it may be a secret
    label = Label(Span(text, 1, 1, 1, len(name) + 1), did_you_mean(suggestions))
    return Diagnostic(code="C120", message=f"no such option `{name}`", labels=(label,), suggestions=tuple(suggestions))
