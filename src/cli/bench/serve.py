"""serve: streamed requests to a running server, of this or another engine with OpenAI's API.

Each open request has a thread and a connection, so the time to connect is included. With a request rate, the time of a
request starts when it is due: waiting for a free thread counts as slowness of the server.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...config.exit_codes import EXIT_WRONG_COMMAND_LINE
from ..count_progress import count_progress
from ..remote import Remote, RemoteError, connect
from .figures import Sample, figures
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
        load = _Load(client, max_concurrency, show)
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


class _Load:
    """Runs jobs at their due times, with a maximum number of open ones."""

    def __init__(self, client: _Client, max_concurrency: int, show: Callable[[int], None]) -> None:
        """show: called with the number of requests that are done."""
        self._client = client
        self._show = show
        self._num_done = itertools.count(1)  # the threads share it: its next() is atomic
        self._max_concurrency = max_concurrency
        self.errors: Counter[str] = Counter()  # of the last run, by message

    def run(self, jobs: Sequence[TextJob], due: Sequence[float], *, from_due: bool) -> list[Sample]:
        began = time.perf_counter()

        def ask(job: TextJob, due_s: float) -> Sample | str:
            try:
                return self._client.ask(job, began + due_s if from_due else time.perf_counter())
            except RemoteError as error:
                return str(error)
            finally:
                self._show(next(self._num_done))

        with ThreadPoolExecutor(self._max_concurrency, thread_name_prefix="bench") as threads:
            try:
                waiting = []
                for job, due_s in zip(jobs, due, strict=True):
                    time.sleep(max(0.0, began + due_s - time.perf_counter()))
                    waiting.append(threads.submit(ask, job, due_s))
                found = [future.result() for future in waiting]
            except KeyboardInterrupt:
                self._client.stop()
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        self.errors = Counter(one for one in found if isinstance(one, str))
        return [one for one in found if isinstance(one, Sample)]


_TEXTS = ("content", "reasoning", "reasoning_content", "tool_calls")  # of a delta: servers have two names for reasoning


def _has_text(event: dict[str, Any]) -> bool:
    """Whether the event contains tokens."""
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or any(delta.get(name) for name in _TEXTS):
            return True
    return False
