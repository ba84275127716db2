"""serve: streamed requests to a running server, of this or another engine with OpenAI's API.

The time to connect is included.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from ...config.exit_codes import EXIT_WRONG_COMMAND_LINE
from ..count_progress import count_progress
from ..remote import Remote, RemoteError, connect
from .figures import Sample, figures
from .load import Load
from .measured import BenchError, Measurement
from .token_costs import token_costs
from .workload import Shape, TextJob, arrivals, text_jobs

_PATHS = {"chat": "/chat/completions", "completions": "/completions"}


def measure_server(
    *,
    url: str,
    model_name: str | None,
    api_key: str | None,
    endpoint: str,
    input_len: int,
    output_len: int,
    num_prompts: int,
    length_spread: float,
    prefix_len: int,
    request_rate: float | None,
    max_concurrency: int,
    ignore_eos: bool,
    num_warmup: int,
    seed: int,
) -> Measurement:
    """Raises BenchError if the server cannot be reached, or if it refuses a request of the warm-up."""
    connected = connect(url, model_name, api_key)
    if connected is None:
        raise BenchError("nothing was measured")
    remote, model = connected
    shape = Shape(input_len, output_len, length_spread, prefix_len)
    costs = token_costs(Remote(url.rstrip("/").removesuffix("/v1"), api_key), model, endpoint)
    if costs is not None and costs.overhead > input_len:
        raise BenchError(
            f"a prompt of one word has {costs.overhead} tokens{' with the chat template' * (endpoint == 'chat')}: "
            f"--input-len {input_len} is not possible",
            EXIT_WRONG_COMMAND_LINE,
        )
    client = _Client(
        remote, endpoint, {"model": model, "temperature": 0} | ({"ignore_eos": True} if ignore_eos else {})
    )
    try:
        for job in text_jobs(num_warmup, shape, seed, batch=-1, costs=costs):
            client.ask(job, time.perf_counter())
    except RemoteError as error:
        raise BenchError(f"the first request failed: {error}") from None
    jobs = text_jobs(num_prompts, shape, seed, costs=costs)
    with count_progress("requests", num_prompts) as show:
        load = Load(client, max_concurrency, show)
        began = time.perf_counter()
        samples = load.run(jobs, arrivals(num_prompts, request_rate, seed), from_due=request_rate is not None)
        seconds = time.perf_counter() - began
    if not samples:
        message, _ = load.errors.most_common(1)[0]
        raise BenchError(f"every request failed: {message}")
    results = {**figures(samples, seconds), "failed": load.errors.total()}
    details = {
        "tokens_counted_by": "the server" if client.has_usage else "events of the stream",
        "input_len_unit": "words" if costs is None else "tokens",
    }
    return Measurement(model=model, results=results, details=details, errors=dict(load.errors))


class _Client:
    def __init__(self, remote: Remote, endpoint: str, fields: dict[str, Any]) -> None:
        self._remote = remote
        self._endpoint = endpoint
        self._fields = {**fields, "stream_options": {"include_usage": True}}
        self._stopped = threading.Event()
        self.has_usage = True

    def stop(self) -> None:
        """End open requests at their next event."""
        self._stopped.set()

    def ask(self, job: TextJob, due: float) -> Sample:
        """Raises RemoteError."""
        body: dict[str, Any] = {**self._fields, "max_tokens": job.output_len}
        if self._endpoint == "chat":
            body["messages"] = [{"role": "user", "content": job.prompt}]
        else:
            body["prompt"] = job.prompt
        first: float | None = None
        last = 0.0
        gaps: list[float] = []
        usage: dict[str, Any] = {}
        for event in self._remote.events(_PATHS[self._endpoint], body):
            now = time.perf_counter()
            if self._stopped.is_set():
                raise RemoteError("stopped")
            usage = event.get("usage") or usage
            if not _has_text(event):
                continue
            if first is None:
                first = now
            else:
                gaps.append(now - last)
            last = now
        end = time.perf_counter()
        if not usage:
            self.has_usage = False
        num_output = usage.get("completion_tokens") or len(gaps) + (first is not None)
        first = end if first is None else first  # an answer without text has only an end
        return Sample(usage.get("prompt_tokens") or 0, num_output, first - due, end - due, gaps)


_TEXTS = ("content", "reasoning", "reasoning_content", "tool_calls")  # of a delta: servers have two names for reasoning


def _has_text(event: dict[str, Any]) -> bool:
    """Whether the event contains tokens."""
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or any(delta.get(name) for name in _TEXTS):
            return True
    return False
