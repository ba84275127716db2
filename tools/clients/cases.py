"""The cases: what a client is asked to do, and how its result is judged."""

from __future__ import annotations

from .answer_cases import REASONING, STRUCTURED, TOOLS
from .api_cases import BATCHES, MESSAGES, RESPONSES
from .judging import Case, Seen, has_text, is_not_empty, require, same_answer
from .task import LONG, MODEL, SHORT


def _models(seen: Seen) -> str:
    require(seen.returned == [MODEL], f"lists {seen.returned}")
    return ""


def _raw(seen: Seen) -> str:
    same_answer(seen)
    if "x-request-id" in seen.returned["headers"]:
        return ""
    return (
        "`_request_id` is empty unless `server.enable_request_id_headers` is set; the `id` of the answer is in the log"
    )


def _stream(seen: Seen) -> str:
    text = seen.expected["choices"][0]["message"]["content"]
    require("".join(seen.returned) == text, f"{''.join(seen.returned)!r}, over plain HTTP {text!r}")
    require(len(seen.returned) > 1, "the whole answer is in one piece")
    return ""


def _usage(seen: Seen) -> str:
    usage = seen.expected["usage"]
    wanted = [usage["prompt_tokens"], usage["completion_tokens"]]
    require(seen.returned == wanted, f"usage is {seen.returned}, over plain HTTP {wanted}")
    return ""


def _aborted(seen: Seen) -> str:
    require(seen.ended.get("abort"), "the client keeps the connection open, and the server generates to the end")
    return ""


def _logprobs(seen: Seen) -> str:
    tokens = [token for token, _, _ in seen.returned]
    wanted = seen.expected["choices"][0]["message"]["content"]
    has_end = "".join(tokens[:-1]) == wanted
    require(has_end or "".join(tokens) == wanted, f"the tokens are {tokens}, the text is {wanted!r}")
    require(all(logprob <= 0 for _, logprob, _ in seen.returned), "a log-probability is greater than 0")
    require({num_top for _, _, num_top in seen.returned} == {2}, "not two alternatives at each token")
    return f"the last entry is the end token `{tokens[-1]}`, which is not in the text, as in vLLM" if has_end else ""


def _several(seen: Seen) -> str:
    require(len(seen.returned) == 2 and all(seen.returned), f"{len(seen.returned)} answers instead of 2")
    return ""


def _retried(seen: Seen) -> str:
    require(seen.statuses.get("200") == 1, f"no attempt succeeded: {dict(seen.statuses)}")
    require(seen.seconds >= 1, "the client does not wait for `Retry-After`")
    return ""


_CHAT, _COMPLETION = "/chat/completions", "/completions"

BASICS = (
    Case("models", "list models", _models),
    Case("completion", "text completion", same_answer, reference=_COMPLETION),
    Case("chat", "chat", same_answer, reference=_CHAT),
    Case("async_chat", "chat, async", same_answer, reference=_CHAT),
    Case("raw", "chat, raw response", _raw, reference=_CHAT),
    Case("history", "system prompt; the answer is sent back with the next question", has_text),
    Case("tool_result", "result of a tool in the messages", has_text),
    Case("stream", "stream", _stream, reference=_CHAT),
    Case("async_stream", "stream, async", _stream, reference=_CHAT),
    Case("stream_usage", "usage in a stream", _usage, reference=_CHAT),
    Case("cancel", "leaving a stream ends the request", _aborted, change=LONG, is_cut=True),
    Case("async_cancel", "leaving a stream ends the request, async", _aborted, change=LONG, is_cut=True),
    Case("stop", "`stop`", same_answer, "chat", {"options": {**SHORT, "stop": ["running"]}}, reference=_CHAT),
    Case(
        "seed",
        "`seed`",
        same_answer,
        "chat",
        {"options": {"temperature": 1.5, "max_tokens": 60, "seed": 7}},
        reference=_CHAT,
    ),
    Case("logprobs", "`logprobs`", _logprobs, reference=_CHAT),
    Case("several", "`n`", _several),
    Case(
        "extra",
        "a field that OpenAI does not have",
        same_answer,
        "chat",
        {"extra": {"ignore_eos": True}},
        reference=_CHAT,
    ),
    Case("embeddings", "embeddings", is_not_empty),
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
        {**LONG, "extra": {"ignore_eos": True, "n": 32}, "timeout_s": 0.5},
        expects="timeout",
        is_cut=True,
    ),
)

# By heading of the page.
GROUPS = {
    "Chat and completions": BASICS,
    "Tools": TOOLS,
    "Reasoning": REASONING,
    "Structured outputs": STRUCTURED,
    "Responses API": RESPONSES,
    "Anthropic Messages": MESSAGES,
    "Files and batches": BATCHES,
}
CASES = tuple(case for group in GROUPS.values() for case in group)
