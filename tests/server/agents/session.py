"""Sessions of coding agents: their requests, and a small agent loop that answers the calls of tools.

The requests are those of two agents, written by hand from their public sources and from requests that users have
published: codex.json (Codex, Responses) and claude_code.json (Claude Code, Messages). A session sends them in the way
of its agent: the whole transcript with every request, and in Claude Code's case with a nonce and a counter in the
system prompt, and a cache marker that moves to the newest message.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.clients.events import message_answer, prompt_length, response_answer

Event = dict[str, Any]
# Sends a request, and returns its status and the body of the response.
Post = Callable[[str, dict[str, Any], Mapping[str, str]], tuple[int, str]]


@dataclass(frozen=True)
class Call:
    """input: an object, or the text of a custom tool."""

    id: str
    name: str
    input: Any
    kind: str = "function"


@dataclass(frozen=True)
class Turn:
    """One request: tokens of its prompt, how many of them the prefix cache had, and the calls of its answer."""

    prompt: int
    cached: int
    calls: tuple[str, ...]


def events_of(body: str) -> Iterator[Event]:
    """The events of a stream whose every event has a name: `event:` and `data:` lines that agree."""
    for block in body.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if not lines:
            continue  # a comment that keeps the connection open
        assert lines.keys() == {"event", "data"}, block
        event = json.loads(lines["data"])
        assert event["type"] == lines["event"], block
        yield event


def _object(text: str) -> dict[str, Any]:
    """What an agent makes of arguments: a small model writes some that are no JSON."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


class Agent(ABC):
    """A transcript in the form of one agent. Requests are made from it, and answers added to it."""

    def __init__(self, file: str) -> None:
        self.recorded: dict[str, Any] = json.loads(Path(__file__).with_name(file).read_text())
        self.path: str = self.recorded["path"]
        self.headers: dict[str, str] = self.recorded["headers"]

    @abstractmethod
    def ask(self, text: str) -> None: ...

    @abstractmethod
    def request(self) -> dict[str, Any]: ...

    @abstractmethod
    def take(self, events: Iterator[Event]) -> tuple[list[Call], Turn]:
        """Adds the answer to the transcript."""

    @abstractmethod
    def answer(self, calls: Sequence[Call], outputs: Sequence[str]) -> None: ...


class Codex(Agent):
    def __init__(self, **changes: Any) -> None:
        """changes: of the body."""
        super().__init__("codex.json")
        self._body = {**self.recorded["body"], **changes}
        self._items: list[dict[str, Any]] = list(self._body["input"])

    def ask(self, text: str) -> None:
        content = [{"type": "input_text", "text": text}]
        self._items.append({"type": "message", "role": "user", "content": content})

    def request(self) -> dict[str, Any]:
        return {**self._body, "input": deepcopy(self._items)}

    def take(self, events: Iterator[Event]) -> tuple[list[Call], Turn]:
        response = response_answer(events, is_checked=False)
        assert response["status"] in ("completed", "incomplete"), response
        calls = []
        for item in response["output"]:
            # Nothing is stored, so that items go back without the ids of the server.
            self._items.append({key: value for key, value in item.items() if key not in ("id", "status")})
            if item["type"] == "function_call":
                name = f"{item['namespace']}.{item['name']}" if item.get("namespace") else item["name"]
                calls.append(Call(item["call_id"], name, _object(item["arguments"])))
            elif item["type"] == "custom_tool_call":
                calls.append(Call(item["call_id"], item["name"], item["input"], "custom"))
        usage = response["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        return calls, Turn(usage["input_tokens"], cached, tuple(call.name for call in calls))

    def answer(self, calls: Sequence[Call], outputs: Sequence[str]) -> None:
        for call, output in zip(calls, outputs, strict=True):
            kind = "custom_tool_call_output" if call.kind == "custom" else "function_call_output"
            self._items.append({"type": kind, "call_id": call.id, "output": output})


class ClaudeCode(Agent):
    def __init__(self, **changes: Any) -> None:
        """changes: of the body."""
        super().__init__("claude_code.json")
        self._body = {**self.recorded["body"], **changes}
        self._messages: list[dict[str, Any]] = []
        self._num_requests = 0

    def ask(self, text: str) -> None:
        blocks = [{"type": "text", "text": text}]
        if not self._messages:
            reminder = "<system-reminder>\nAs you answer, you can use the files in the folder.\n</system-reminder>"
            blocks.insert(0, {"type": "text", "text": reminder})
        self._messages.append({"role": "user", "content": blocks})

    def request(self) -> dict[str, Any]:
        """With a new nonce, fewer tokens left, and the cache marker at the newest block."""
        self._num_requests += 1
        body = deepcopy({**self._body, "messages": self._messages})
        for block in body["system"]:
            nonce = f"{self._num_requests * 7919 % 0xFFFFF:05x}"
            block["text"] = block["text"].replace("$NONCE", nonce).replace("$TOKENS", str(9000 - self._num_requests))
        body["messages"][-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        return body

    def counted(self) -> dict[str, Any]:
        """The request that counts the tokens of the next one."""
        kept = ("model", "system", "messages", "tools", "thinking")
        return {name: value for name, value in self.request().items() if name in kept}

    def take(self, events: Iterator[Event]) -> tuple[list[Call], Turn]:
        message = message_answer(events, is_checked=False)
        self._messages.append({"role": "assistant", "content": message["content"]})
        uses = [block for block in message["content"] if block["type"] == "tool_use"]
        is_broken = bool(uses) and uses[-1]["input"] == {}  # its arguments are no JSON: this is not carried out
        assert (message["stop_reason"] == "tool_use") == (bool(uses) and not is_broken), message
        if is_broken:
            uses = []
        calls = [Call(use["id"], use["name"], use["input"]) for use in uses]
        usage = message["usage"]
        cached = usage.get("cache_read_input_tokens") or 0
        return calls, Turn(prompt_length(usage), cached, tuple(call.name for call in calls))

    def answer(self, calls: Sequence[Call], outputs: Sequence[str]) -> None:
        results = [
            {"tool_use_id": call.id, "type": "tool_result", "content": output, "is_error": output.startswith("error")}
            for call, output in zip(calls, outputs, strict=True)
        ]
        self._messages.append({"role": "user", "content": results})


@dataclass
class Workplace:
    """The tools of the agent, on files in memory."""

    files: dict[str, str] = field(default_factory=lambda: {"README.md": "A small project.\n"})
    ran: list[Call] = field(default_factory=list)

    def run(self, call: Call) -> str:
        self.ran.append(call)
        name = call.name.rpartition(".")[2].rpartition("__")[2]
        if call.input == {}:
            return "error: the arguments are not a JSON object"
        if name == "get_weather":
            return json.dumps({"temperature": 7 + len(str(call.input.get("city", "")))})
        if name in ("shell_command", "Bash"):
            return f"Exit code: 0\nOutput:\n{' '.join(sorted(self.files))}\n"
        if name == "apply_patch":
            return self._patched(call.input)
        return f"error: there is no tool {call.name}"

    def _patched(self, patch: str) -> str:
        """Adds and deletes files, and changes none."""
        if not patch.startswith("*** Begin Patch\n") or not patch.rstrip("\n").endswith("\n*** End Patch"):
            return "error: the patch is not complete"
        for line in patch.splitlines():
            head, _, name = line.removeprefix("*** ").partition(": ")
            if line.startswith("*** ") and head == "Add File":
                self.files[name] = ""
            elif line.startswith("*** ") and head == "Delete File":
                self.files.pop(name, None)
        return "Success. Updated the files.\n"


def run_session(
    agent: Agent, post: Post, questions: Sequence[str], workplace: Workplace, *, max_steps: int = 3
) -> list[Turn]:
    """Asks each question, runs the tools that are called, and sends their outputs back, until text is answered.

    Asserts that every request is answered with 200 and that its events are in order.
    """
    turns = []
    for question in questions:
        agent.ask(question)
        for _ in range(max_steps):
            status, body = post(agent.path, agent.request(), agent.headers)
            assert status == 200, body
            calls, turn = agent.take(events_of(body))
            turns.append(turn)
            if not calls:
                break
            agent.answer(calls, [workplace.run(call) for call in calls])
    return turns
