"""The workloads of agents, sent to every server by the same client: chat with tools, a JSON schema, Responses.

Each is streamed, greedy, and runs on several connections. The first token is the first event with a part of an answer,
whatever part it is. Weights are random, so answers have no meaning: a limit of tokens ends them, and the schema, whose
values all have a bounded length.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from stoker.cli.bench.workload import Shape, TextJob, text_jobs

# ChatML with tools and calls in the form of Hermes and Qwen, which all engines read.
TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nTo call one, answer with\\n<tool_call>\\n' }}
    {{- '{"name": <name>, "arguments": <arguments>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- elif message.role == 'user' or message.role == 'assistant' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": kind, "description": key.replace("_", " ")} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    _tool("read_file", "Reads a file of the project", path="string", first_line="integer", last_line="integer"),
    _tool("write_file", "Writes a file of the project", path="string", text="string"),
    _tool("search", "Searches the files of the project", pattern="string", folder="string"),
    _tool("run", "Runs a command and returns its output", command="string", limit_s="integer"),
]
# Every value has a bounded length, so that random weights end.
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["bug", "feature", "question"]},
        "areas": {
            "type": "array",
            "items": {"type": "string", "enum": ["engine", "server", "config", "docs", "tests"]},
            "minItems": 8,
            "maxItems": 8,
        },
        "is_urgent": {"type": "boolean"},
        "place": {
            "type": "object",
            "properties": {"file": {"type": "string", "enum": ["a.py", "b.py"]}, "is_new": {"type": "boolean"}},
            "required": ["file", "is_new"],
            "additionalProperties": False,
        },
    },
    "required": ["kind", "areas", "is_urgent", "place"],
    "additionalProperties": False,
}

_SYSTEM_LEN, _INPUT_LEN, _OUTPUT_LEN, _JSON_LIMIT = 300, 100, 48, 400
_STREAMS = 8


def _chat(model: str, job: TextJob, **fields: Any) -> dict[str, Any]:
    system, _, question = job.prompt.partition("\n")
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"model": model, "messages": messages, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, **fields}  # fmt: skip


def _request(name: str, model: str, job: TextJob) -> tuple[str, dict[str, Any]]:
    if name.startswith("chat-tools"):
        return "/chat/completions", _chat(model, job, tools=TOOLS, max_tokens=_OUTPUT_LEN, ignore_eos=True)
    if name.startswith("json-schema"):
        schema = {"type": "json_schema", "json_schema": {"name": "issue", "schema": SCHEMA, "strict": True}}
        return "/chat/completions", _chat(model, job, response_format=schema, max_tokens=_JSON_LIMIT)
    system, _, question = job.prompt.partition("\n")
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    return "/responses", {"model": model, "instructions": system, "input": question, "tools": tools, "temperature": 0,
                          "max_output_tokens": _OUTPUT_LEN, "store": False, "stream": True}  # fmt: skip


def _jobs(count: int, seed: int) -> Iterator[TextJob]:
    systems = text_jobs(1, Shape(_SYSTEM_LEN, 1), seed=seed)
    for system in systems:
        for job in text_jobs(count, Shape(_INPUT_LEN, 1), seed=seed + 1):
            yield TextJob(f"{system.prompt}\n{job.prompt}", job.output_len)


def _is_answer(event: dict[str, Any]) -> bool:
    """Whether an event has a part of the answer: text, reasoning, or arguments of a call."""
    if "choices" in event:
        deltas = [choice["delta"] for choice in event["choices"]]
        return any(value for delta in deltas for name, value in delta.items() if name != "role")
    return str(event.get("type", "")).endswith(".delta")


def _output_tokens(event: dict[str, Any]) -> int | None:
    usage = event.get("usage") or (event.get("response") or {}).get("usage") or {}
    found: int | None = usage.get("completion_tokens", usage.get("output_tokens"))
    return found


def _ask(url: str, path: str, body: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """Raises OSError for a refused request, and for a stream without an answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=limit_s)
    began, times, tokens = time.perf_counter(), list[float](), None
    try:
        connection.request("POST", parts.path + path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise OSError(f"{path}: {response.status} {response.read(300)!r}")
        for line in response:
            if line.startswith(b"data: {"):
                event = json.loads(line.removeprefix(b"data: "))
                tokens = _output_tokens(event) or tokens
                if _is_answer(event):
                    times.append(time.perf_counter() - began)
    except http.client.HTTPException as error:
        raise OSError(f"{path}: {error!r}") from None
    finally:
        connection.close()
    if not times or not tokens:
        raise OSError(f"{path}: the stream has no answer or no usage")
    return {"first_s": times[0], "tokens": tokens, "inter_s": (times[-1] - times[0]) / max(1, tokens - 1)}


def agent_load(url: str, model: str, name: str, seed: int, limit_s: float) -> dict[str, Any]:
    """Runs a workload. Raises OSError if a request fails."""
    own = seed + sum(name.encode())  # other prompts than those of another workload, which are in the prefix cache
    requests = [_request(name, model, job) for job in _jobs(2 * _STREAMS, own)]
    began = time.perf_counter()
    with ThreadPoolExecutor(_STREAMS) as pool:
        answers = list(pool.map(lambda request: _ask(url, *request, limit_s), requests))
    seconds = time.perf_counter() - began
    num_tokens = sum(answer["tokens"] for answer in answers)
    return {
        "seconds": seconds,
        "rate": num_tokens / seconds,
        "requests_per_s": len(answers) / seconds,
        "output_tokens": num_tokens,
        "first_token_s": statistics.median(answer["first_s"] for answer in answers),
        "inter_token_s": statistics.median(answer["inter_s"] for answer in answers),
    }
