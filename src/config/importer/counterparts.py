"""Counterparts of another engine's options: the tables' entries and their reader."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..schema.options import option_and_keys, options
from ..source.flags import Flag
from ..source.overrides import Override


@dataclass(frozen=True, slots=True)
class Counterpart:
    """One option of another engine.

    Attributes:
        names: its spellings.
        path: our option, with the key below it for a mapping; empty if there is none.
        takes: how many values it has: 1, 0, any number (`many`), or 0 or 1 (`maybe`).
        value: what it sets if it takes no value.
        values: its values that are called otherwise here; an empty text: nothing needs to be set for it.
        only: if not empty, the values that have a counterpart.
        form: if not None, the form of those values.
        says: what a reader should know; for an option without `path`, why there is none and what there is instead.
        is_needless: without `path`: no option is needed, since this is the behaviour here.
        commas: its one value holds several, parted by commas.
        unit: what its number counts, where ours needs it said.
        also: further options, with their values, that it stands for.
        is_section: the value is a JSON object of the options of a section, and switches on the option `path` of it.
        after: the value is the first group of this pattern.
        second: the option that its second group sets, if it matches.
        elsewhere: values of it that are a separate option here: its path and value.
    """

    names: tuple[str, ...]
    path: str = ""
    takes: int | str = 1
    value: str = "true"
    values: Mapping[str, str] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    form: re.Pattern[str] | None = None
    says: str = ""
    is_needless: bool = False
    commas: bool = False
    unit: str = ""
    also: tuple[tuple[str, str], ...] = ()
    is_section: bool = False
    after: re.Pattern[str] | None = None
    second: str = ""
    elsewhere: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def to(
    path: str, *names: str, says: str = "", takes: int | str = 1, commas: bool = False, unit: str = ""
) -> Counterpart:
    """The same option under another name."""
    return Counterpart(names, path, takes, says=says, commas=commas, unit=unit)


def adapters(*names: str, takes: int | str = 1, commas: bool = False) -> Counterpart:
    """Adapters that are loaded at the start, each as NAME=PATH; naming one enables them."""
    return Counterpart(
        names,
        "server.lora_modules",
        takes,
        commas=commas,
        form=re.compile(r"^[A-Za-z0-9._/-]+=.+"),
        says="write each as NAME=PATH in `server.lora_modules`, or in `lora.modules`",
        also=(("lora.enable_lora", "true"),),
    )


def template(*names: str) -> Counterpart:
    """A chat template: a file or its text; names of templates that the other engine has are unknown here."""
    says = "a file, or the template itself; built-in names are unknown here, and the model's own template is used"
    return Counterpart(names, "server.chat_template", form=re.compile(r"[{/.$\0]"), says=says)


def key_file(path: str, *names: str, says: str) -> Counterpart:
    """The name of a file that holds a secret. Text of JSON, which would be read as another form, is not carried."""
    return Counterpart(names, f"{path}.file", form=re.compile(r"^[^{\[]"), says=says)


def section(path: str, *names: str) -> Counterpart:
    """All options of a section, as one JSON object with the same keys; `path` is the one that it switches on."""
    return Counterpart(names, path, is_section=True)


def choice(
    path: str,
    *names: str,
    values: Mapping[str, str],
    only: tuple[str, ...] = (),
    says: str = "",
    also: tuple[tuple[str, str], ...] = (),
    elsewhere: Mapping[str, tuple[str, str]] | None = None,
) -> Counterpart:
    """The same option, some of whose values have other names."""
    return Counterpart(names, path, values=values, only=only, says=says, also=also, elsewhere=elsewhere or {})


def switch(path: str, value: str, *names: str, says: str = "") -> Counterpart:
    """A flag without a value that stands for one value of an option."""
    return Counterpart(names, path, 0, value, says=says)


def gone(says: str, *names: str, takes: int | str = 1) -> Counterpart:
    """There is no counterpart."""
    return Counterpart(names, "", takes, says=says)


def needless(says: str, *names: str, takes: int | str = 1) -> Counterpart:
    """No counterpart is needed."""
    return Counterpart(names, "", takes, says=says, is_needless=True)


@dataclass(frozen=True, slots=True)
class Read:
    """Words of the other engine, the options they set here, and the entry of the table."""

    words: tuple[str, ...]
    overrides: tuple[Override, ...] = ()
    counterpart: Counterpart | None = None


def read_foreign(words: Sequence[str], table: Mapping[str, Counterpart]) -> Iterator[Read]:
    """A command line of another engine, every word in exactly one part. `table` is by spelling."""
    index = 0
    while index < len(words):
        name, equals, attached = words[index].partition("=")
        found = table.get(name) or table.get(name.replace("_", "-"))
        if not name.startswith("-") or name == "-":
            yield Read((words[index],))
            index += 1
            continue
        takes = found.takes if found else "many"  # an unknown option's values are named with it
        values = [attached] if equals else _following(words, index + 1, takes)
        end = index + 1 + (0 if equals else len(values))
        yield _read(found, name, values, tuple(words[index:end]))
        index = end


def read_value(found: Counterpart, name: str, value: str, words: tuple[str, ...]) -> Read:
    """An entry with the value that it has elsewhere than on a command line. `words`: how it is written there."""
    return _read(found, name, [value], words)


def _following(words: Sequence[str], index: int, takes: int | str) -> list[str]:
    values: list[str] = []
    most = {0: 0, 1: 1, "maybe": 1}.get(takes, len(words))
    while index < len(words) and len(values) < most:
        word = words[index]
        is_number = word[1:2].isdigit() or word[1:2] == "."
        if word.startswith("-") and not is_number and len(word) > 1 and (takes != 1 or word.startswith("--")):
            break
        values.append(word)
        index += 1
    return values


def _read(found: Counterpart | None, name: str, values: list[str], words: tuple[str, ...]) -> Read:
    if found is None or not found.path:
        return Read(words, counterpart=found)
    if found.takes in (0, "maybe") and (not values or found.takes == 0):
        values = [found.value]
    if found.only and not all(value in found.only for value in values):
        return Read(words, counterpart=found)
    if found.form is not None and not all(found.form.search(value) for value in values):
        return Read(words, counterpart=found)
    if found.is_section:
        return _read_section(found, name, values, words)
    if found.commas:
        values = [part for value in values for part in value.split(",") if part]
    if len(values) == 1 and values[0] in found.elsewhere:
        path, value = found.elsewhere[values[0]]
        return Read(words, (_override(path, name, [value], words),), Counterpart(found.names, path))
    matches = [found.after.fullmatch(value) if found.after is not None else None for value in values]
    values = [match[1] if match else value for match, value in zip(matches, values, strict=True)]
    values = [found.values.get(value, value) for value in values]
    if not values or "" in values:
        return Read(words, counterpart=found)
    values = [value + found.unit if value[-1:].isdigit() else value for value in values]
    overrides = [_override(found.path, name, values, words)]
    overrides += [_override(path, name, [value], words) for path, value in found.also]
    overrides += [_override(found.second, name, [match[2]], words) for match in matches if match and found.second]
    return Read(words, tuple(overrides), found)


def _read_section(found: Counterpart, name: str, values: list[str], words: tuple[str, ...]) -> Read:
    """Read a section. It gives no overrides if it is not a JSON object, or has a key that is not an option."""
    try:
        given = json.loads(values[0]) if values else None
    except ValueError:
        given = None
    home = found.path.partition(".")[0]
    if not isinstance(given, dict) or any(f"{home}.{key}" not in options() for key in given):
        return Read(words, counterpart=found)
    written = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}
    overrides = [_override(f"{home}.{key}", name, [value], words) for key, value in written.items()]
    return Read(words, (_override(found.path, name, ["true"], words), *overrides), found)


def _override(path: str, name: str, values: Sequence[str], words: tuple[str, ...]) -> Override:
    option, keys = option_and_keys(path)
    return Override(Flag(option, tuple(keys), name, None), tuple(values), words)


def by_name(*table: Counterpart) -> dict[str, Counterpart]:
    found: dict[str, Counterpart] = {}
    for counterpart in table:
        for name in counterpart.names:
            assert name not in found, f"duplicate name in the table: {name}"
            found[name] = counterpart
    return found
