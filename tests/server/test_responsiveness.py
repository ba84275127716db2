"""Nothing that grows with a request holds the interpreter or runs on the event loop."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stoker.server import endpoint
from stoker.server.protocol.json import dump, dump_long
from stoker.server.routes import chat_writer, completion_writer
from stoker.text.tokenizer import Tokenizer

from .deployment import Served


@pytest.fixture(autouse=True)
def short_switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def longest_hold(work: Callable[[], Any]) -> float:
    """For how much of the time of `work`, run in a thread, this thread could not run at a stretch: 1 is all of it."""
    worker = threading.Thread(target=work)
    began = last = time.perf_counter()
    longest = 0.0
    worker.start()
    while worker.is_alive():
        time.sleep(1e-4)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest / (last - began)


def test_other_threads_run_while_many_tokens_are_decoded(tokenizer: Tokenizer):
    token_ids = [300] * 1_000_000
    assert longest_hold(lambda: tokenizer.decode(token_ids)) < 0.7


@pytest.mark.slow
def test_other_threads_run_while_a_long_answer_is_encoded():
    top = [{"token": "x", "logprob": -1.5, "bytes": [120]}] * 20
    answer = {"choices": [{"logprobs": {"content": [{"token": "x", "top_logprobs": top}] * 20_000}}]}
    assert longest_hold(lambda: dump_long(answer)) < 0.5


VALUES: list[dict[str, Any]] = [
    {},
    {"a": [], "b": {}, "c": None, "d": [[]], "e": [{}]},
    {"a": list(range(1000)), "b": [{"c": [{"d": list(range(257))}]}, {"e": 1}, 7], "ü": "\u2028"},
    {"a": [[1]] * 256, "b": [[1]] * 257, "c": [{"x": 1}] * 513},
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_long_answer_has_the_bytes_of_a_short_one(value: dict[str, Any]):
    assert dump_long(value) == dump(value)


@pytest.mark.parametrize(("limit", "thread"), [(10, "writer"), (1000, "MainThread")])
def test_an_answer_with_many_log_probabilities_is_written_in_a_thread(
    served: Served, monkeypatch: pytest.MonkeyPatch, limit: int, thread: str
):
    threads: list[str] = []
    monkeypatch.setattr(endpoint, "INLINE_ITEMS", limit)
    for module, name in ((chat_writer, "chat_logprobs"), (completion_writer, "CompletionLogprobs")):
        monkeypatch.setattr(module, "INLINE_ITEMS", limit)
        original = getattr(module, name)

        def noting(*arguments: Any, original: Any = original) -> Any:
            threads.append(threading.current_thread().name)
            return original(*arguments)

        monkeypatch.setattr(module, name, noting)
    asked = {"max_tokens": 4, "ignore_eos": True}
    assert served.chat(logprobs=True, top_logprobs=5, **asked).status_code == 200
    assert served.complete(logprobs=5, **asked).status_code == 200
    assert served.complete([5] * 11, logprobs=5, echo=True, stream=True, **asked).status_code == 200
    # one for each whole answer; of the stream the first chunk, with the prompt, and three with one token
    assert [name.split("_")[0] for name in threads] == [thread] * 3 + ["MainThread"] * 3
