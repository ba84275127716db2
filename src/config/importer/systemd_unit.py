"""The server that a unit of systemd starts, a container of podman's units, or a program of supervisord.

Their files are lines of `Key=value`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from .launch import Launch, in_image, launch_of
from .shell import assignment
from .shell_words import UnreadableShell
from .words import fields, literal, undecided

_UNIT = re.compile(r"^[ \t]*(ExecStart|Image|command)\s*=", re.MULTILINE)
_PROGRAM = re.compile(r"^[ \t]*\[program:", re.MULTILINE)
_COMMA = re.compile(r""",(?=(?:[^"']|"[^"]*"|'[^']*')*$)""")  # outside of quotes
_SECTION = re.compile(r"^[ \t]*\[(Service|Container|program:[^\]\n]+)\][ \t]*$", re.MULTILINE)
_SETTING = re.compile(r"^[ \t]*([A-Za-z]\w*)[ \t]*=((?:[^\n\\]|\\[^\n]|\\\n(?:[ \t]*[#;].*\n)*)*)", re.MULTILINE)
_CONTINUED = re.compile(r"\\\n(?:[ \t]*[#;].*\n)*")
_FIRST = re.compile(r"(?:[ \t]*(?:[#;].*)?\n)*[ \t]*\[")
_INDENTED = re.compile(r"\\?\n(?:[ \t]*[#;].*\n)*[ \t]+(?=[^\s#;\[])")  # supervisord: more of the value above
_REMARK = re.compile(r"[ \t]+;.*")
_OPEN = re.compile(r"\0[^\0]*\0")  # of a script that writes the unit
_SPECIFIER = re.compile(r"\0[^\0]*\0|%.")
_EXPANSION = re.compile(r"\0[^\0]*\0|\$\$|\$\{[A-Za-z_]\w*(?::-[^{}]*)?\}|%.")
_WHOLE = re.compile(r"\$([A-Za-z_]\w*)")


def is_unit(text: str) -> bool:
    """Whether a text is a unit file, or a section of supervisord's; a script that writes one is not."""
    return bool(_FIRST.match(text) and _UNIT.search(text) and _SECTION.search(text))


def launches_of_unit(text: str) -> list[Launch]:
    """The servers that it starts. UnreadableShell for an open quote."""
    env: dict[str, str] = {}
    files: list[str] = []
    starts: list[tuple[str, int]] = []
    others: dict[str, None] = {}
    image = ""
    text = text.replace("\r\n", "\n")
    if _PROGRAM.search(text):
        text = _REMARK.sub("", _INDENTED.sub(" ", text))
    for key, value, line in _settings(text):
        if key == "Environment":
            env = env | dict(_pairs(_split(value, line))) if value else {}
        elif key == "environment":
            env |= dict(_pairs(_split(_COMMA.sub(" ", value), line)))
        elif key == "EnvironmentFile":
            files = [*files, value.removeprefix("-")] if value else []
        elif key in ("ExecStart", "command", "Exec"):
            starts = [*starts, (value, line)] if value else []
        elif key == "Image":
            image = value
        else:
            others[key] = None
    found: list[Launch] = []
    for value, line in starts or ([("", 1)] if image else []):
        words = _split(value, line)
        if image:
            launch = in_image(literal(image), [], _command(words, env), env)
        else:
            words, has_variables = _without_prefix(words)
            launch = launch_of(_command(words, env, has_variables=has_variables), env)
        if launch is not None:
            launch.env = env | launch.env
            launch.used |= set(re.findall(r"\$\{?(\w+)", value))
            launch.files += files
            if others:
                launch.notes.append(f"Other settings of the unit are not part of a manifest: {', '.join(others)}.")
            found.append(launch)
    return found


def _settings(text: str) -> Iterator[tuple[str, str, int]]:
    """Key, value and line of every setting."""
    for match in _SETTING.finditer(text):
        yield match[1], _CONTINUED.sub(" ", match[2]).strip(), text.count("\n", 0, match.start()) + 1


def _split(value: str, line: int) -> list[str]:
    parts = _OPEN.findall(value)  # may hold spaces and quotes
    try:
        words = shlex.split(_OPEN.sub("\0", value))
    except ValueError:
        raise UnreadableShell("a quote is not closed", line) from None
    kept = iter(parts)
    return [re.sub("\0", lambda _: next(kept, ""), word) for word in words]


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """Names and values of Environment=, in which systemd replaces only specifiers."""
    for word in words:
        if pair := assignment(word):
            yield pair[0], _expanded(pair[1], _SPECIFIER, {})


def _expanded(text: str, pattern: re.Pattern[str], env: Mapping[str, str]) -> str:
    """The text with what the pattern finds replaced; every other dollar sign is one."""
    done, at = "", 0
    for match in pattern.finditer(text):
        done += literal(text[at : match.start()])
        if match[0].startswith("\0"):
            done += match[0]
        elif match[0].startswith("%"):
            done += "%" if match[0] == "%%" else undecided(match[0])
        else:
            done += match[0] if match[0] == "$$" else env.get(match[0][2:-1], match[0])
        at = match.end()
    return done + literal(text[at:])


def _without_prefix(words: list[str]) -> tuple[list[str], bool]:
    """The words of ExecStart= without what is in front of its path; whether variables in them are replaced."""
    prefix = re.match(r"[-@:+!|]*", words[0])[0] if words else ""  # type: ignore[index]
    return [word[len(prefix) :] for word in words[:1]] + words[1 + ("@" in prefix) :], ":" not in prefix


def _command(words: list[str], env: Mapping[str, str], *, has_variables: bool = True) -> list[str]:
    """The words with variables and specifiers replaced."""
    done: list[str] = []
    for word in words:
        whole = _WHOLE.fullmatch(word)
        if not has_variables:
            done.append(_expanded(word, _SPECIFIER, {}))
        elif whole:
            done += fields(env.get(whole[1], f"${{{whole[1]}}}"))
        else:
            done.append(_expanded(word, _EXPANSION, env))
    return done
