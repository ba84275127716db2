"""embed: texts to a running server, of this or another engine with OpenAI's route for embeddings."""

from __future__ import annotations

import threading
import time

from ...config.exit_codes import EXIT_WRONG_COMMAND_LINE
from ..count_progress import count_progress
from ..remote import Remote, RemoteError, connect
from .figures import Sample, spread
from .load import Load
from .measured import BenchError, Measurement
from .token_costs import token_costs
from .workload import Shape, arrivals, text_jobs


def measure_embeddings(
    *,
    url: str,
    model_name: str | None,
    api_key: str | None,
    input_len: int,
    length_spread: float,
    batch_size: int,
    num_prompts: int,
    request_rate: float | None,
    max_concurrency: int,
    num_warmup: int,
    seed: int,
) -> Measurement:
    """Raises BenchError if the server cannot be reached, or if it refuses a request of the warm-up."""
    connected = connect(url, model_name, api_key)
    if connected is None:
        raise BenchError("nothing was measured")
    remote, model = connected
    shape = Shape(input_len, 1, length_spread)
    costs = token_costs(Remote(url.rstrip("/").removesuffix("/v1"), api_key), model, "completions")
    if costs is not None and costs.overhead > input_len:
        message = f"a text of one word has {costs.overhead} tokens: --input-len {input_len} is not possible"
        raise BenchError(message, EXIT_WRONG_COMMAND_LINE)
    client = _Client(remote, model)

    def requests(count: int, batch: int = 0) -> list[list[str]]:
        texts = [job.prompt for job in text_jobs(count * batch_size, shape, seed, batch, costs)]
        return [texts[start : start + batch_size] for start in range(0, len(texts), batch_size)]

    try:
        for texts in requests(num_warmup, batch=-1):
            client.ask(texts, time.perf_counter())
    except RemoteError as error:
        raise BenchError(f"the first request failed: {error}") from None
    with count_progress("requests", num_prompts) as show:
        load = Load(client, max_concurrency, show)
        due = arrivals(num_prompts, request_rate, seed)
        began = time.perf_counter()
        samples = load.run(requests(num_prompts), due, from_due=request_rate is not None)
        seconds = time.perf_counter() - began
    if not samples:
        message, _ = load.errors.most_common(1)[0]
        raise BenchError(f"every request failed: {message}")
    num_texts, num_tokens = len(samples) * batch_size, sum(each.num_input for each in samples)
    results = {
        "requests": len(samples),
        "texts": num_texts,
        "seconds": seconds,
        "input_tokens": num_tokens,
        "requests_per_s": len(samples) / seconds,
        "texts_per_s": num_texts / seconds,
        "input_tokens_per_s": num_tokens / seconds,
        "end_to_end_s": spread([each.end_s for each in samples]),
        "failed": load.errors.total(),
    }
    details = {"input_len_unit": "words" if costs is None else "tokens"}
    return Measurement(model=model, results=results, details=details, errors=dict(load.errors))


class _Client:
    """Asks for vectors in base64, as OpenAI's client does."""

    def __init__(self, remote: Remote, model: str) -> None:
        self._remote = remote
        self._fields = {"model": model, "encoding_format": "base64"}
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Send no more requests: an answer comes as a whole, and those that are open are read to their end."""
        self._stopped.set()

    def ask(self, job: list[str], due: float) -> Sample:
        """Raises RemoteError."""
        if self._stopped.is_set():
            raise RemoteError("stopped")
        answer = self._remote.command("/embeddings", {**self._fields, "input": job})
        end = time.perf_counter() - due
        if (num_vectors := len(answer.get("data") or ())) != len(job):
            raise RemoteError(f"the server answered {len(job)} texts with {num_vectors} vectors")
        return Sample((answer.get("usage") or {}).get("prompt_tokens") or 0, 0, end, end)
