"""`engine chat`: a conversation with a running server, or one message with -q."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .flags.serving import ChatFlags
from .remote import Remote, connect
from .talk import Command, talk


def run(flags: ChatFlags) -> int:
    """Returns the exit code: 0, or 1 if the server cannot be reached or refuses the only message."""
    connected = connect(flags.url, flags.model_name, flags.api_key)
    if connected is None:
        return 1
    remote, model = connected
    conversation = _Conversation(remote, {"model": model}, flags.system_prompt)
    return talk(conversation.answer, flags.quick, f"{model} at {flags.url}", conversation.commands)


class _Conversation:
    def __init__(self, remote: Remote, fields: dict[str, Any], system_prompt: str | None) -> None:
        """fields: of each request."""
        self._remote = remote
        self._fields = fields
        self._system = system_prompt
        self._messages: list[dict[str, str]] = []
        self.commands = {
            "clear": Command("", "Forget the conversation.", self._clear),
            "system": Command("TEXT", "Set or remove the system message, and forget the conversation.", self._instruct),
            "set": Command("FIELD VALUE", "Set a field of the requests, such as /set temperature 0.2", self._set),
            "unset": Command("FIELD", "Remove a field of the requests.", self._unset),
        }

    def answer(self, text: str) -> Iterator[str]:
        self._messages.append({"role": "user", "content": text})
        system = [{"role": "system", "content": self._system}] if self._system else []
        said: list[str] = []
        try:
            body = {**self._fields, "messages": system + self._messages}
            for choice in self._remote.stream("/chat/completions", body):
                delta: dict[str, Any] = choice.get("delta") or {}
                if delta.get("content"):
                    said.append(delta["content"])
                    yield delta["content"]
        finally:
            if said:
                self._messages.append({"role": "assistant", "content": "".join(said)})
            else:
                self._messages.pop()  # else a question without an answer would precede the next one

    def _clear(self, _: str) -> str:
        self._messages.clear()
        return "the conversation is forgotten"

    def _instruct(self, text: str) -> str:
        self._system = text
        return f"the system message is {'set' if text else 'removed'}; {self._clear('')}"

    def _set(self, argument: str) -> str:
        name, _, text = argument.partition(" ")
        if not text:
            return "error: expected a field and a value, such as /set temperature 0.2"
        try:
            self._fields[name] = json.loads(text)
        except ValueError:
            self._fields[name] = text
        return f"{name} is {json.dumps(self._fields[name])}"

    def _unset(self, name: str) -> str:
        if name == "model" or name not in self._fields:
            return f"error: `{name}` is not set"
        del self._fields[name]
        return f"{name} is not set any more"
