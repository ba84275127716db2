"""The cases: what a client is asked to do, and how its result is judged.

An adapter only calls its client and returns what the client gave. Whether that is right is decided here, for all
clients alike: by the answer to the same request over plain HTTP, and by the server's own counters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

KEY, MODEL = "sk-clients", "builtin:tiny"
_SHORT = {"temperature": 0, "max_tokens": 60}
_LONG = {"options": {"max_tokens": 1900}, "extra": {"ignore_eos": True}}
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Name of the city"}},
    "required": ["city"],
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}

# Given to every call of an adapter. retries, timeout_s: options of the client. options: OpenAI's fields; extra: others.
TASK: dict[str, Any] = {
    "key": KEY,
    "model": MODEL,
    "question": "What is max_num_seqs?",
    "prompt": "2 + 3 =",
    "system": "Answer in one sentence.",
    "retries": 0,
    "timeout_s": 120.0,
    "options": _SHORT,
    "extra": {},
    "schema": _PERSON,
    "tool": {
        "type": "function",
        "function": {"name": "get_weather", "description": "The weather in a city", "parameters": _WEATHER},
    },
    "exchange": [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"weather": "rain"}'},
    ],
}

# Codes with which the server refuses what it does not support.
_UNSUPPORTED = frozenset({"unsupported_parameter", "not_found"})
# The server's code of each expected error. A timeout of the client has none.
_CODES = {
    "key": "invalid_api_key",
    "model": "model_not_found",
    "context": "context_length_exceeded",
    "queue": "queue_full",
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
    """call: function of the adapter, `name` by default. change: of TASK. judge: returns a note, raises Differs.
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

    @property
    def task(self) -> dict[str, Any]:
        return {**TASK, **self.change}


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
            raise Differs(f"{name}: {_line(raised['message'])}")
        return Verdict("works", case.judge(seen), name)
    except Differs as reason:
        return Verdict("differs", str(reason), name)


def _check_error(kind: str, raised: dict[str, Any] | None, wanted: str, seen: Seen) -> None:
    if raised is None:
        raise Differs(f"no error, but {_line(str(seen.returned))}")
    if wanted not in raised["classes"]:
        raise Differs(f"{raised['class']} instead of {wanted}: {_line(raised['message'])}")
    server = raised["server"] or {}
    if server.get("code") != _CODES.get(kind):
        raise Differs(f"{raised['class']} for another reason: {_line(raised['message'])}")
    reason = server.get("message", "")
    if reason not in raised["message"]:
        raise Differs(f"{raised['class']} without the server's message: {_line(raised['message'])}")


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_NOTE else f"{line[:_MAX_NOTE]}..."


def _require(condition: object, reason: str) -> None:
    if not condition:
        raise Differs(reason)


def _models(seen: Seen) -> str:
    _require(seen.returned == [MODEL], f"lists {seen.returned}")
    return ""


def _same_answer(seen: Seen) -> str:
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
        _require(got[name] == wanted[name], f"{name} is {got[name]!r}, over plain HTTP {wanted[name]!r}")
    return ""


def _raw(seen: Seen) -> str:
    _same_answer(seen)
    if "x-request-id" in seen.returned["headers"]:
        return ""
    return (
        "`_request_id` is empty unless `server.enable_request_id_headers` is set; the `id` of the answer is in the log"
    )


def _text(seen: Seen) -> str:
    _require(seen.returned["text"], "the answer is empty")
    return ""


def _stream(seen: Seen) -> str:
    text = seen.expected["choices"][0]["message"]["content"]
    _require("".join(seen.returned) == text, f"{''.join(seen.returned)!r}, over plain HTTP {text!r}")
    _require(len(seen.returned) > 1, "the whole answer is in one piece")
    return ""


def _usage(seen: Seen) -> str:
    usage = seen.expected["usage"]
    wanted = [usage["prompt_tokens"], usage["completion_tokens"]]
    _require(seen.returned == wanted, f"usage is {seen.returned}, over plain HTTP {wanted}")
    return ""


def _aborted(seen: Seen) -> str:
    _require(seen.ended.get("abort"), "the client keeps the connection open, and the server generates to the end")
    return ""


def _logprobs(seen: Seen) -> str:
    tokens = [token for token, _, _ in seen.returned]
    wanted = seen.expected["choices"][0]["message"]["content"]
    has_end = "".join(tokens[:-1]) == wanted
    _require(has_end or "".join(tokens) == wanted, f"the tokens are {tokens}, the text is {wanted!r}")
    _require(all(logprob <= 0 for _, logprob, _ in seen.returned), "a log-probability is greater than 0")
    _require({num_top for _, _, num_top in seen.returned} == {2}, "not two alternatives at each token")
    return f"the last entry is the end token `{tokens[-1]}`, which is not in the text, as in vLLM" if has_end else ""


def _several(seen: Seen) -> str:
    _require(len(seen.returned) == 2 and all(seen.returned), f"{len(seen.returned)} answers instead of 2")
    return ""


def _tool_call(seen: Seen) -> str:
    name = TASK["tool"]["function"]["name"]
    if seen.returned["calls"] == [name]:
        return ""
    if "<tool_call>" in (seen.returned["text"] or ""):
        raise Differs("the request is accepted, and the call is in the text of the answer")
    raise Differs(f"no call of `{name}`")


def _is_called(seen: Seen) -> str:
    _require(seen.returned["calls"], "no call")
    return ""


def _person(seen: Seen) -> str:
    is_person = isinstance(seen.returned, dict) and seen.returned.keys() == _PERSON["properties"].keys()
    _require(is_person, f"not an object of the schema: {_line(str(seen.returned))}")
    return ""


def _is_not_empty(seen: Seen) -> str:
    _require(seen.returned, "the answer is empty")
    return ""


def _retried(seen: Seen) -> str:
    _require(seen.statuses.get("200") == 1, f"no attempt succeeded: {dict(seen.statuses)}")
    _require(seen.seconds >= 1, "the client does not wait for `Retry-After`")
    return ""


_CHAT, _COMPLETION = "/chat/completions", "/completions"
_TOOLS = {"question": "What is the weather in Paris?"}
_PEOPLE = {"question": "Anna is 7 years old."}

CASES = (
    Case("models", "list models", _models),
    Case("completion", "text completion", _same_answer, reference=_COMPLETION),
    Case("chat", "chat", _same_answer, reference=_CHAT),
    Case("async_chat", "chat, async", _same_answer, reference=_CHAT),
    Case("raw", "chat, raw response", _raw, reference=_CHAT),
    Case("history", "system prompt; the answer is sent back with the next question", _text),
    Case("tool_result", "result of a tool in the messages", _text),
    Case("stream", "stream", _stream, reference=_CHAT),
    Case("async_stream", "stream, async", _stream, reference=_CHAT),
    Case("stream_usage", "usage in a stream", _usage, reference=_CHAT),
    Case("cancel", "leaving a stream ends the request", _aborted, change=_LONG, is_cut=True),
    Case("async_cancel", "leaving a stream ends the request, async", _aborted, change=_LONG, is_cut=True),
    Case("stop", "`stop`", _same_answer, "chat", {"options": {**_SHORT, "stop": ["running"]}}, reference=_CHAT),
    Case(
        "seed",
        "`seed`",
        _same_answer,
        "chat",
        {"options": {"temperature": 1.5, "max_tokens": 60, "seed": 7}},
        reference=_CHAT,
    ),
    Case("logprobs", "`logprobs`", _logprobs, reference=_CHAT),
    Case("several", "`n`", _several),
    Case(
        "extra",
        "a field that OpenAI does not have",
        _same_answer,
        "chat",
        {"extra": {"ignore_eos": True}},
        reference=_CHAT,
    ),
    Case("tools", "`tools`, the model may call one", _tool_call, change=_TOOLS),
    Case("forced_tool", "`tools`, the model must call one", _is_called, change=_TOOLS),
    Case("structured", "structured output by a JSON schema", _person, change=_PEOPLE),
    Case("responses", "Responses API", _is_not_empty),
    Case("embeddings", "embeddings", _is_not_empty),
    Case("error_key", "unknown API key: 401", call="chat", change={"key": "sk-unknown"}, expects="key"),
    Case("error_model", "unknown model: 404", call="chat", change={"model": "nope"}, expects="model"),
    Case(
        "error_context",
        "prompt longer than the context: 400",
        call="chat",
        change={"question": "word " * 5000},
        expects="context",
    ),
    Case("error_queue", "full queue: 429, no retries", call="chat", expects="queue", server="full"),
    Case("retry", "full queue: retried after `Retry-After`", _retried, "chat", {"retries": 3}, server="full"),
    Case(
        "error_timeout",
        "timeout of the client, which ends the request",
        _aborted,
        "chat",
        {**_LONG, "extra": {"ignore_eos": True, "n": 32}, "timeout_s": 0.5},
        expects="timeout",
        is_cut=True,
    ),
)
