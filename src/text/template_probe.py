"""What a chat template does with a message, found by rendering small conversations: which roles it writes, and whether
it writes the arguments of a call that are a text.

A template that compares the role with some names writes nothing at all for others, without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
Variables = Mapping[str, Any]

SYSTEM, DEVELOPER = "system", "developer"
_ALWAYS = ("user", "assistant")
_ROLES = (SYSTEM, DEVELOPER, *_ALWAYS, "tool")  # of OpenAI's API
_MAX_ROLES = 64  # that are tried: clients choose them, and each costs some renderings
_TEXT = "dragonfly"  # one word, which no filter of a template changes
_ID = "aaaaaaaaa"  # some templates accept ids of nine letters only
_USER: Message = {"role": "user", "content": "a"}
_ANSWER: Message = {"role": "assistant", "content": "b"}


def _call(arguments: Any) -> Message:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": _ID, "type": "function", "function": function}]}


# Messages before the one that is tried, and after it.
_PLACES: Sequence[tuple[Sequence[Message], Sequence[Message]]] = (
    ((), (_USER,)),
    ((_USER, _call({})), ()),
    ((_USER, _call("{}")), ()),
    ((_USER,), (_USER,)),
    ((_USER, _ANSWER), (_USER,)),
)


class TemplateProbe:
    """Answers are found when they are first needed, and kept: they do not depend on the variables of a request."""

    def __init__(self, written: Callable[[Sequence[Message], Variables], str | None], compared: Sequence[str]) -> None:
        """
        written: the prompt of a conversation, None if the template raises an error.
        compared: the texts that the template compares with values, such as roles.
        """
        self._written = written
        self._compared = frozenset(compared)
        self._writes = dict.fromkeys(_ALWAYS, True)
        self._takes_text: bool | None = None
        self._writes_content: bool | None = None

    def has_developer(self, variables: Variables) -> bool:
        """Whether the template has a case for the role `developer`: it names it, and then writes the message."""
        return DEVELOPER in self._compared and self.writes(DEVELOPER, variables)

    def writes(self, role: str, variables: Variables) -> bool:
        """False if the template leaves out messages of this role. True if it raises an error at each of them."""
        if role not in self._writes and len(self._writes) < _MAX_ROLES:
            self._writes[role] = self._find(role, variables)
        return self._writes.get(role, True)

    def roles(self, variables: Variables) -> list[str]:
        """The roles that the template writes, of those that it or OpenAI's API names."""
        candidates = {*_ROLES, *(name for name in self._compared if name.isidentifier() and len(name) < 32)}
        known = {role for role in candidates if any(self._tries(role, variables))}
        return sorted(known | {DEVELOPER} if SYSTEM in known else known)

    def takes_text_arguments(self, variables: Variables) -> bool:
        """Whether arguments that are a text are written. False if only arguments that are an object are."""
        if self._takes_text is None:
            as_text, as_object = (
                _TEXT in (self._written([_USER, _call(arguments)], variables) or "")
                for arguments in (_TEXT, {"a": _TEXT})
            )
            self._takes_text = as_text or not as_object
        return self._takes_text

    def _find(self, role: str, variables: Variables) -> bool:
        if self._writes_content is None:  # a template may ignore all messages
            self._writes_content = _TEXT in (self._written([{"role": "user", "content": _TEXT}], variables) or "")
        tries = [] if not self._writes_content else self._tries(role, variables)
        return not tries or any(tries)

    def _tries(self, role: str, variables: Variables) -> list[bool]:
        """Whether the template writes the content, at places where it accepts such a message. Ends with a yes."""
        message = {"role": role, "content": _TEXT, "name": "f", "tool_call_id": _ID}
        found = []
        for before, after in _PLACES:
            text = self._written([*before, message, *after], variables)
            if text is not None:
                found.append(_TEXT in text)
                if found[-1]:
                    break
        return found
