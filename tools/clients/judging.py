"""How the result of a case is judged, for all clients alike: what was seen, the verdict, and the errors.

An adapter only calls its client and returns what the client gave. Whether that is right is decided here and in the
modules of cases, by the answer to the same request over plain HTTP and by the server's own counters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# Codes with which the server refuses what it does not support.
_UNSUPPORTED = frozenset({"unsupported_parameter", "not_found"})
# The server's code of each expected error. A timeout of the client has none.
_CODES = {
    "key": "invalid_api_key",
    "model": "model_not_found",
    "context": "context_length_exceeded",
    "queue": "queue_full",
}
# Anthropic's errors have a type and no code.
_TYPES = {
    "key": "authentication_error",
    "model": "not_found_error",
    "context": "invalid_request_error",
    "queue": "rate_limit_error",
}
_MAX_NOTE = 300


@dataclass(frozen=True)
class Seen:
    """What happened in a case.

    raised: as worker.py describes an error. expected: the response to the same request over plain HTTP.
    statuses: of the client's requests, as the server counted them. ended: its sequences, by finish reason.
    """

    returned: Any = None
    raised: dict[str, Any] | None = None
    expected: Mapping[str, Any] = field(default_factory=dict)
    statuses: Mapping[str, int] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """result absent: the client has no such function. error: the class of the error that the client raised."""

    result: Literal["works", "refused", "differs", "absent"]
    note: str = ""
    error: str = ""


class Differs(Exception):
    """The message is the reason, in one line."""


@dataclass(frozen=True)
class Case:
    """call: function of the adapter, `name` by default. change: of the task. judge: returns a note, raises Differs.
    expects: key of Client.errors if the case must raise an error.
    reference: path of the request over plain HTTP that must give the same answer.
    server: `full` has a queue that is full. is_cut: the client leaves before the answer is complete."""

    name: str
    title: str
    judge: Callable[[Seen], str] = lambda seen: ""
    call: str = ""
    change: Mapping[str, Any] = field(default_factory=dict)
    expects: str = ""
    reference: str = ""
    server: Literal["open", "full"] = "open"
    is_cut: bool = False


def judge(case: Case, seen: Seen, errors: Mapping[str, str]) -> Verdict:
    """errors: of the client."""
    raised = seen.raised
    name = raised["class"] if raised else ""
    try:
        if case.expects:
            _check_error(case.expects, raised, errors[case.expects], seen)
        elif raised:
            server = raised["server"] or {}
            if server.get("code") in _UNSUPPORTED:
                return Verdict("refused", server["message"], name)
            raise Differs(f"{name}: {line(raised['message'])}")
        return Verdict("works", case.judge(seen), name)
    except Differs as reason:
        return Verdict("differs", str(reason), name)
    except (KeyError, TypeError, IndexError) as error:
        return Verdict("differs", f"a result that cannot be read: {error!r}", name)


def _check_error(kind: str, raised: dict[str, Any] | None, documented: str, seen: Seen) -> None:
    if raised is None:
        raise Differs(f"no error, but {line(str(seen.returned))}")
    if documented not in raised["classes"]:
        raise Differs(f"{raised['class']} instead of {documented}: {line(raised['message'])}")
    server = raised["server"] or {}
    wanted = _CODES if "code" in server or not server else _TYPES
    if server.get("code", server.get("type")) != wanted.get(kind):
        raise Differs(f"{raised['class']} for another reason: {line(raised['message'])}")
    reason = server.get("message", "")
    if reason not in raised["message"]:
        raise Differs(f"{raised['class']} without the server's message: {line(raised['message'])}")


def line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_NOTE else f"{line[:_MAX_NOTE]}..."


def require(condition: object, reason: str) -> None:
    if not condition:
        raise Differs(reason)


def same_answer(seen: Seen) -> str:
    """Text, finish reason and usage, each if the client shows it."""
    (choice,) = seen.expected["choices"]
    usage = seen.expected["usage"]
    wanted = {
        "text": choice["message"]["content"] if "message" in choice else choice["text"],
        "finish_reason": choice["finish_reason"],
        "usage": [usage["prompt_tokens"], usage["completion_tokens"]],
    }
    got = seen.returned
    if "usage" in got and got["usage"][0] != wanted["usage"][0]:
        more = got["usage"][0] - wanted["usage"][0]
        return f"the client sends a prompt of its own: {more:+} tokens"
    for name in wanted.keys() & got.keys():
        require(got[name] == wanted[name], f"{name} is {got[name]!r}, over plain HTTP {wanted[name]!r}")
    return ""


def has_text(seen: Seen) -> str:
    require(seen.returned["text"], "the answer is empty")
    return ""


def is_not_empty(seen: Seen) -> str:
    require(seen.returned, "the answer is empty")
    return ""
