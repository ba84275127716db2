"""Words of a launch in the form of a manifest.

A dollar sign is `$$`, a variable is `${NAME}`. An expansion whose result is not known before the launch runs, such as
`$(date)`, is kept between two NUL characters, which no word of a command line can contain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

PLACE = re.compile(r"\{\{[^{}\n]*\}\}")  # in a template of Jinja, Go or just: it is filled in before the launch
_OPEN = re.compile(r"\0([^\0]*)\0")
_FIELD = re.compile(r"(?:\0[^\0]*\0|\$\$|\$\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|[^\s\0])+")
_SECRET = re.compile(
    r"(?:key|token|secret|passwd|password|passphrase|credential)(?:(?<!token)s)?(?![a-z])|(?<![a-z])auth(?![a-z])|bearer",
    re.IGNORECASE,
)


def literal(text: str) -> str:
    """Text in the form of a manifest, where `$` starts a variable."""
    return text.replace("$", "$$")


def undecided(raw: str) -> str:
    """An expansion that only the running launch can evaluate."""
    return "\0" + raw.replace("\0", "") + "\0"


def is_undecided(text: str) -> bool:
    return "\0" in text


def undecided_parts(text: str) -> list[str]:
    """The expansions in a text that only the running launch can evaluate."""
    return _OPEN.findall(text)


def as_written(text: str) -> str:
    """The text as the launch has it."""
    return _OPEN.sub(lambda match: match[1].replace("$", "$$"), text).replace("$$", "$").replace("\0", "")


def fields(text: str) -> list[str]:
    """What a shell makes of a variable without quotes: its words. Undecided expansions and forms stay whole."""
    return [match[0] for match in _FIELD.finditer(text)]


def names_a_secret(name: str) -> bool:
    """Whether the value of a flag or variable of this name must not be shown."""
    return bool(_SECRET.search(name))


def redacted(words: Iterable[str]) -> str:
    """Words as they were written, without the values of flags and variables that are named like secrets."""
    shown: list[str] = []
    is_hidden = False
    for word in words:
        name, equals, _ = word.partition("=")
        parts = word.split("=")  # --setenv=API_KEY=value
        named = next((at for at, part in enumerate(parts[:-1], 1) if names_a_secret(part)), 0)
        if is_hidden and not word.startswith("--"):
            shown.append("...")
        elif named:
            shown.append(f"{as_written('='.join(parts[:named]))}=...")
        else:
            shown.append(as_written(word))
        is_hidden = word.startswith("-") and not equals and names_a_secret(name)
    return " ".join(shown)
