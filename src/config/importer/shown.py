"""Words of a launch as they are shown again, without secrets, and what findings about them say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ..diagnostics import Diagnostic
from ..schema.options import options
from ..source.flags import read_flag
from ..source.overrides import FLAG_NAME
from ..source.secrets import looks_secret, mentions_secret
from ..source_text import Span
from .engine_tables import TABLES
from .environment import variable
from .words import as_written, is_undecided, names_a_secret


def option_path(path: str) -> str:
    """The option's own path, without the keys below it."""
    return ".".join(path.split(".")[:2])


def reason_of(finding: Diagnostic) -> str:
    said = [label.text for label in finding.labels if label.text]
    if finding.code not in ("C118", "C120"):
        said.insert(0, finding.message)
    return "; ".join([*said, *finding.notes]) or finding.message


def written_of(finding: Diagnostic) -> str:
    return line_of(finding.labels[0].span) if finding.labels else (finding.path or "")


def line_of(span: Span) -> str:
    return as_written(span.source.redacted())


def _is_secret(flag: str) -> bool:
    """Whether one of the engines reads a secret from it."""
    paths = [option_path(table[flag].path) for table in TABLES.values() if flag in table and table[flag].path]
    known = read_flag(flag)
    return (known is not None and known.option.is_secret) or any(options()[path].is_secret for path in paths)


def shown(words: Sequence[str], near: Sequence[str] = ()) -> str:
    """Words as they were written, without what may be a secret. `near`: flags that may have been meant."""
    name, equals, value = words[0].partition("=")
    if names_a_secret(name) and (equals or len(words) > 1):
        return f"{name}{'=' if equals else ' '}..."
    is_known = variable(name) is not None or name.endswith("tokens")  # a number of tokens is no secret
    seems_secret = looks_secret(name) and not is_known
    if seems_secret or any(map(mentions_secret, (value, *words[1:]))) or any(map(_is_secret, near)):
        return f"{FLAG_NAME.match(name)[0]} ..."  # type: ignore[index]
    return " ".join(map(shown_word, words))


def shown_word(word: str) -> str:
    """One word as a shell would read it again; an expansion stays outside of quotes."""
    written = as_written(word)
    if is_undecided(word) or not re.search(r"[\s\"']", written):
        return written
    return shlex.quote(written)
