"""The names of a dialect's fields, for errors of the chat request that a body was converted to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...engine.api import InvalidRequest
from .errors import ApiError, bad_request

_QUOTED = re.compile(r"`([a-z_]+(?:[.\[#][^`]*)?)`")
_ENTRY = re.compile(r"(messages|tools)\[(\d+)\](.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Names:
    """
    fields: of chat requests, longer paths first, to this dialect's.
    messages: the field that has them. message_places: of each message, the complete path.
    tools: of each function, the paths of the tool and of its parameters.
    """

    fields: Mapping[str, str]
    messages: str
    message_places: Sequence[str] = ()
    tools: Sequence[tuple[str, str]] = ()

    def of(self, param: str) -> str:
        """A path in a chat request as one of this dialect."""
        if entry := _ENTRY.match(param):
            name, index, rest = entry[1], int(entry[2]), entry[3]
            return self._message(index, rest) if name == "messages" else self._tool(index, rest, param)
        if param == "messages":
            return self.messages
        for chat, own in self.fields.items():
            if param.startswith(chat) and param[len(chat) :][:1] in ("", ".", "[", "#"):
                return own + param[len(chat) :]
        return param

    def without_places(self) -> Names:
        """Return names for messages among which are others than the messages of the body."""
        return replace(self, message_places=())

    def error(self, error: ApiError | InvalidRequest) -> ApiError:
        """The same error. One that has this dialect's names already is not changed."""
        if isinstance(error, InvalidRequest):
            error = bad_request(str(error), code=error.code, param=error.param)
        if error.has_own_names:
            return error
        message = _QUOTED.sub(lambda quoted: f"`{self.of(quoted[1])}`", error.message)
        param = None if error.param is None else self.of(error.param)
        renamed = ApiError(error.status, message, code=error.code, kind=error.kind, param=param, headers=error.headers)
        renamed.has_own_names = True
        return renamed

    def _message(self, index: int, rest: str) -> str:
        if index >= len(self.message_places):
            return self.messages
        place = self.message_places[index]
        return f"{place}.role" if rest == ".role" and place.startswith(self.messages) else place

    def _tool(self, index: int, rest: str, param: str) -> str:
        if index >= len(self.tools):
            return param
        place, parameters = self.tools[index]
        for chat, own in ((".function.parameters", parameters), (".function", place)):
            if rest.startswith(chat):
                # the schema of a custom tool's input is made of its grammar: no place of it is in the body
                return own if own.endswith(".format.definition") else own + rest[len(chat) :]
        return place + rest
