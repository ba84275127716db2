"""The input of a custom tool, out of the arguments of the call: one text in a JSON object, decoded as it arrives."""

from __future__ import annotations

import json
import re

from ..protocol.response_tools import INPUT

_HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_PLAIN = re.compile(r'[^"\\]+')
_ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])')
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB]")


def is_json(text: str) -> bool:
    """Whether the arguments of a call are complete."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class JsonInput:
    """Arguments in any other form are the input as they are. has_ended: all of the input was decoded."""

    def __init__(self) -> None:
        self._text = ""  # not decoded yet
        self._has_begun = False
        self.has_ended = False

    def feed(self, text: str) -> str:
        """The characters that are certain with this piece."""
        if self.has_ended:
            return ""
        self._text += text
        if not self._has_begun:
            head = _HEAD.match(self._text)
            if head is None:
                return ""
            self._has_begun, self._text = True, self._text[head.end() :]
        return self._decoded()

    def finish(self) -> str:
        """What was held back."""
        rest, self._text = ("" if self.has_ended else self._text), ""
        if self._has_begun:
            return ""  # an escape that the end of the answer cut off
        try:
            value = json.loads(rest)
        except (ValueError, RecursionError):
            return rest
        if isinstance(value, str):
            return value  # arguments that are not an object are read as a string
        return value[INPUT] if isinstance(value, dict) and isinstance(value.get(INPUT), str) else rest

    def _decoded(self) -> str:
        found: list[str] = []
        at, text = 0, self._text
        while at < len(text):
            if plain := _PLAIN.match(text, at):
                found.append(plain.group())
                at = plain.end()
            elif text[at] == '"':
                self.has_ended = True
                break
            else:
                escape = _ESCAPE.match(text, at)
                if escape is None:
                    break
                end = escape.end()
                if _HIGH_SURROGATE.match(escape.group()):
                    second = _ESCAPE.match(text, end)
                    if second is None and len(text) - end < 6:
                        break
                    end = second.end() if second else end
                found.append(json.loads(f'"{text[at:end]}"').encode("utf-8", "replace").decode())
                at = end
        self._text = text[at:]
        return "".join(found)
