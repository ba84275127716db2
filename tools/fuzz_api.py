"""Sends many generated requests to a real server, and lists every response that is the server's mistake.

    python -m tools.fuzz_api [--requests 100000] [--cases 300] [--seed 1] [--streams 8] [--log build/fuzz.log]

Starts `engine up deployments/tiny.yaml`. Schemathesis generates --cases valid and as many invalid requests for each
route of /openapi.json; SEEDS adds requests of the kind that clients send. All of them are sent, and then changed copies
of them: a field removed, added or replaced, by a value of another request or by one that is often handled wrongly.
Numbers of tokens are kept small. A status of 500 or more is a mistake, and so are a lost connection, and a server that
does not answer any more. Exits with 1 if there is one. What was sent is counted by the server as well.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import http.client
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable

from .clients.server import Server
from .clients.task import KEY, MODEL, PERSON, TASK

LIMIT_S = 120.0
# Errors that are the client's wish: a time limit that it sent.
_WISHED = ('"deadline_exceeded"',)
_FUNCTION = {"type": "function", **TASK["tool"]["function"]}
_CLAUDE_TOOL = {"name": "get_weather", "input_schema": TASK["tool"]["function"]["parameters"]}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
_RESULT = {"type": "function_call_output", "call_id": "c", "output": "7"}
_USER = [{"role": "user", "content": "What is 2 + 3?"}]
_CALL = {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"}
# Requests that are right, from which changed ones reach further into the server.
SEEDS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"messages": _USER, "stream": True, "stream_options": {"include_usage": True}},
        {"messages": TASK["exchange"], "tools": [TASK["tool"]], "tool_choice": "required", "n": 2},
        {"messages": _USER, "response_format": _SCHEMA, "logprobs": True, "top_logprobs": 2},
        {"messages": _USER, "structured_outputs": {"regex": "[a-z]{1,3}"}, "reasoning_effort": "low"},
        {"messages": _USER, "chat_template_kwargs": {"enable_thinking": True}, "stop": ["a"], "seed": 1},
    ],
    "/v1/completions": [{"prompt": ["a", "b"], "logprobs": 1, "echo": True}, {"prompt": [5, 6], "stream": True}],
    "/v1/responses": [
        {"input": "Hello", "stream": True, "reasoning": {"effort": "low"}},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}], "tools": [_FUNCTION]},
        {"input": [*_USER, _CALL, _RESULT], "tools": [_FUNCTION]},
        {"input": "Hello", "text": {"format": {"type": "json_schema", "name": "person", "schema": PERSON}}},
        {"input": "Hello", "tools": [{"type": "custom", "name": "patch"}, {"type": "web_search"}], "stream": True},
    ],
    "/v1/responses/input_tokens": [{"input": "Hello"}],
    "/v1/messages": [
        {"messages": _USER, "stream": True, "system": "Be brief."},
        {"messages": _USER, "tools": [_CLAUDE_TOOL], "tool_choice": {"type": "any"}},
        {"messages": _USER, "thinking": {"type": "enabled", "budget_tokens": 1024}, "stream": True},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}], "stop_sequences": ["a"]},
    ],
    "/v1/embeddings": [
        {"input": ["a", "b"], "encoding_format": "base64", "truncate_prompt_tokens": 5},
        {"messages": _USER, "use_activation": False},
    ],
    "/pooling": [{"input": [[5, 6], [7]], "task": "embed"}],
    "/v1/score": [{"queries": "a", "documents": ["a", {"text": "b"}], "max_tokens_per_doc": 4}],
    "/v1/rerank": [{"query": "a", "documents": ["a", "b"], "top_n": 1}],
    "/rerank": [{"query": "a", "texts": ["a", "b"], "return_text": True}],
    "/v2/embed": [{"texts": ["a"], "embedding_types": ["float", "ubinary"], "truncate": "START"}],
    "/embed": [{"inputs": ["a", "b"], "truncate": True}],
    "/similarity": [{"inputs": {"source_sentence": "a", "sentences": ["a", "b"]}}],
    "/v1/messages/count_tokens": [{"messages": _USER, "tools": [_CLAUDE_TOOL]}],
}  # fmt: skip
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of", "min_tokens")
_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 0.5, 1e308, 2**31, 2**63, -(2**63) - 1),
    *("", "a", "auto", "user", "\u00e9\u0000", "\ud800", "a" * 5000),
    *([], [[]], [None], {}, {"type": "text"}, {"a": {"a": {"a": []}}}),
]


@dataclass(frozen=True)
class Request:
    """body: JSON, or bytes that are sent as they are."""

    method: str
    route: str  # as the description has it
    path: str
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass
class Found:
    """What was sent. mistakes: (route, status, message) -> the first request."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    mistakes: dict[tuple[str, int, str], Request] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, request: Request, status: int, text: str) -> None:
        with self.lock:
            self.statuses[f"{request.method} {request.route}", status] += 1
            if (status >= 500 or status == 0) and not any(code in text for code in _WISHED):
                self.mistakes.setdefault((request.route, status, text[:200]), request)


def generated(description: dict[str, Any], num_cases: int, number: int) -> Iterator[Request]:
    """Valid and invalid requests of every route of the description, by Schemathesis."""
    for result in schemathesis.openapi.from_dict(description).get_all_operations():
        operation = result.ok()
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            cases = _cases(operation.as_strategy(generation_mode=mode), num_cases, number)
            print(f"  {operation.label}: {len(cases)} {mode.value} cases", file=sys.stderr)
            yield from (_request_of(case) for case in cases)


def _cases(strategy: Any, num_cases: int, number: int) -> list[Any]:
    cases: list[Any] = []

    @seed(number)
    @settings(max_examples=num_cases, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(case=strategy)
    def collect(case: Any) -> None:
        cases.append(case)

    with contextlib.suppress(Unsatisfiable):  # a route without parameters has no invalid requests
        collect()
    return cases


def _request_of(case: Any) -> Request:
    sent = case.as_transport_kwargs(base_url="http://x")
    parts = urlsplit(sent["url"])
    query = parts.query or urlencode(sent.get("params") or {}, doseq=True)
    body = sent.get("json", sent.get("data"))
    headers = tuple(
        (name, str(value)) for name, value in (sent.get("headers") or {}).items() if _is_sendable(name, value)
    )
    return Request(case.method, case.operation.path, f"{parts.path}?{query}" if query else parts.path, body, headers)


def _is_sendable(name: str, value: Any) -> bool:
    return (
        name.lower() not in ("content-length", "user-agent", "authorization")
        and str(value).isprintable()
        and str(value).isascii()
    )


def changed(request: Request, pool: list[Request], random: random.Random) -> Request:
    """A copy whose body differs in one to three places."""
    body = copy.deepcopy(request.body)
    for _ in range(random.randint(1, 3)):
        other = random.choice(pool).body
        values = [*_VALUES, *([node for _, _, node in _nodes(other)] if isinstance(other, dict) else [])]
        places = [(holder, key) for holder, key, _ in _nodes(body)]
        if not places or random.random() < 0.1:
            if isinstance(body, dict):
                body[random.choice(sorted(map(str, other)) if isinstance(other, dict) and other else ["x"])] = (
                    random.choice(values)
                )
            continue
        holder, key = random.choice(places)
        if random.random() < 0.2:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(random.choice(values))
    return Request(request.method, request.route, request.path, body, request.headers)


def _nodes(value: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Every (holder, key, value) below a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, node in list(pairs):
        yield value, key, node
        yield from _nodes(node)


def bounded(body: Any) -> Any:
    """The body with small numbers of tokens and answers, so that generation does not take all the time."""
    if not isinstance(body, dict):
        return body
    kept = {key: min(value, 3) if key in _LIMITS and type(value) is int else value for key, value in body.items()}
    if kept.get("ignore_eos") or not any(type(kept.get(name)) is int for name in _LIMITS[:3]):
        kept.setdefault("max_tokens" if "input" not in kept else "max_output_tokens", 3)
    return kept


class Sender(threading.Thread):
    """Sends requests over one connection, until there are no more."""

    def __init__(self, url: str, requests: Iterator[Request], lock: threading.Lock, found: Found) -> None:
        super().__init__(daemon=True)
        self._address = urlsplit(url).netloc
        self._requests, self._lock, self._found = requests, lock, found
        self._connection = http.client.HTTPConnection(self._address, timeout=LIMIT_S)

    def run(self) -> None:
        with contextlib.closing(self._connection):
            while (request := self._next()) is not None:
                self._found.add(request, *self._send(request))

    def _next(self) -> Request | None:
        with self._lock:
            return next(self._requests, None)

    def _send(self, request: Request) -> tuple[int, str]:
        """Status and message of the response; status 0 for none."""
        headers = {"authorization": f"Bearer {KEY}", **dict(request.headers)}
        body = request.body if isinstance(request.body, bytes | None) else _encoded(request.body)
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        for attempt in (1, 2):  # the server may close a connection that was not used for long
            try:
                self._connection.request(request.method, request.path, body, headers)
                response = self._connection.getresponse()
                text = response.read(1 << 20).decode(errors="replace")
                if (
                    response.status == 200
                    and '"error":{' in text
                    and "event-stream" in (response.getheader("content-type") or "")
                ):
                    return _status_of_event(text), text[-300:]
                return response.status, text
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if attempt == 2:
                    return 0, repr(error)
        raise AssertionError


def _status_of_event(text: str) -> int:
    """A stream that fails has an event with an error, whose type says whose mistake it is."""
    return 500 if "internal" in text or "server_error" in text or "api_error" in text else 200


def _encoded(body: Any) -> bytes:
    return json.dumps(bounded(body), ensure_ascii=random.random() < 0.5).encode(errors="surrogatepass")


def run(server: Server, num_requests: int, num_cases: int, number: int, num_streams: int) -> Found:
    random_ = random.Random(number)
    base = server.url.removesuffix("/v1")
    description = server.get("/openapi.json")
    pool = [Request("POST", route, route, {"model": MODEL, **body}) for route, bodies in SEEDS.items()
            for body in bodies if route in description["paths"]]  # fmt: skip
    pool = [*pool * 10, *generated(description, num_cases, number)]
    with_body = [request for request in pool if isinstance(request.body, dict)]
    seeds = with_body[: 10 * sum(len(bodies) for bodies in SEEDS.values())]
    print(f"{len(pool)} requests as generated", file=sys.stderr)
    found, lock = Found(), threading.Lock()

    def requests() -> Iterator[Request]:
        for sent in range(num_requests):
            if sent < len(pool):
                yield pool[sent]
            else:
                chosen = random_.choice(seeds if seeds and random_.random() < 0.5 else with_body)
                yield changed(chosen, with_body, random_)
            if sent % 5000 == 4999:
                print(f"{sent + 1} sent, {len(found.mistakes)} mistakes, {time.strftime('%X')}", file=sys.stderr)

    source = requests()
    senders = [Sender(base, source, lock, found) for _ in range(num_streams)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    return found


def report(found: Found, counted: Counter[str]) -> str:
    """counted: requests by status, as the server counted them."""
    by_status: Counter[int] = Counter()
    for (_, status), count in found.statuses.items():
        by_status[status] += count
    routes = sorted({route for route, _ in found.statuses})
    lines = [f"{sum(by_status.values())} requests to {len(routes)} routes: {dict(sorted(by_status.items()))}"]
    lines.append(f"as the server counted them: {dict(sorted(counted.items()))}")
    for route in routes:
        lines.append(
            f"  {route}: { {status: n for (name, status), n in sorted(found.statuses.items()) if name == route} }"
        )
    for (route, status, message), request in found.mistakes.items():
        body = request.body if isinstance(request.body, bytes) else json.dumps(request.body)
        lines.append(f"MISTAKE {request.method} {route}: {status} {message}\n    {request.path} {body!r:.1500}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--cases", type=int, default=300, help="of Schemathesis, per route, valid and invalid each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--log", type=Path, help="of the server")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the server is ended too
    with tempfile.TemporaryDirectory() as folder:
        server = Server("open", options.log or Path(folder) / "server.log")
        try:
            found = run(server, options.requests, options.cases, options.seed, options.streams)
            is_alive = server.wait_until(server.is_idle)
            counted = server.statuses()
        finally:
            server.close()
    print(report(found, counted))
    if not is_alive:
        print("MISTAKE requests still run after the last one was answered")
    return int(bool(found.mistakes) or not is_alive)


if __name__ == "__main__":
    sys.exit(main())
