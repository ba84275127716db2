"""What answers say about drafts, and what requests say about answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.engine.api import VerifiedDraft
from stoker.text.draft_metrics import DraftMetrics

from ..fakes import FakeEngine
from .deployment import Served
from .drafted import asked
from .test_compatibility import HELLO, chunks

REPEATED = {"prompt": "1, 2, 3, 4, 5, 6, 7, 8\n" * 8, "max_tokens": 40, "temperature": 0}
WAYS = [
    ("/v1/chat/completions", {"messages": HELLO}),
    ("/v1/completions", {"prompt": "Hello"}),
    ("/v1/responses", {"input": "Hello"}),
]
SUMMARY = {
    "mean_acceptance_length": 2.5,
    "draft_acceptance_rate": 0.6,
    "acceptance_histogram": [0, 1, 1, 0],
    "num_spec_steps": 2,
    "num_draft_tokens": 5,
    "num_accepted_draft_tokens": 3,
}
DETAILS = {"per_step_drafted": [3, 2], "per_step_accepted": [1, 2]}


def served_with_drafts(folder: Path, **options: Any) -> Served:
    """Each answer is one output of two steps with drafts."""
    engine = FakeEngine(tokens_per_output=1000)
    engine.drafts = [VerifiedDraft(3, 1), VerifiedDraft(2, 2)]
    return Served(folder, engine, **options)


def last_of(response: httpx.Response, path: str) -> dict[str, Any]:
    """The end of a stream, which has the usage."""
    if path != "/v1/responses":
        return chunks(response.text)[-1]
    data = [line for line in response.text.splitlines() if line.startswith("data: ")]
    found: dict[str, Any] = httpx.Response(200, text=data[-1].removeprefix("data: ")).json()["response"]
    return found


@pytest.mark.parametrize(("path", "body"), WAYS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.effect("server.per_request_spec_decode_metrics")
def test_an_answer_says_what_its_drafts_have_brought(folder: Path, path: str, body: dict[str, Any], stream: bool):
    more: dict[str, Any] = {"stream": True} if stream else {}
    if stream and path != "/v1/responses":
        more["stream_options"] = {"include_usage": True}
    for level, expected in (("none", None), ("summary", SUMMARY), ("detailed", SUMMARY | DETAILS)):
        served = served_with_drafts(folder, per_request_spec_decode_metrics=level)
        answer = served.post(path, {**body, **more})
        found = last_of(answer, path) if stream else answer.json()
        assert found["usage"] is not None
        assert found.get("metrics") == (expected and {"speculative_decoding": expected})


@pytest.mark.parametrize(
    ("path", "body"), [(WAYS[0][0], {**WAYS[0][1], "n": 2}), ("/v1/completions", {"prompt": ["Hello", "world"]})]
)
def test_an_answer_of_several_sequences_does_not(folder: Path, path: str, body: dict[str, Any]):
    served = served_with_drafts(folder, per_request_spec_decode_metrics="summary")
    assert "metrics" not in served.post(path, body).json()


def test_a_sequence_that_a_stop_string_ends_has_the_drafts_so_far(folder: Path):
    engine = FakeEngine(script=lambda _: [*range(40, 80)])
    engine.drafts = [VerifiedDraft(1, 0)]
    served = Served(folder, engine, per_request_spec_decode_metrics="summary")
    text = served.complete(max_tokens=30).json()["choices"][0]["text"]
    answer = served.complete(max_tokens=30, stop=text[4:7]).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    metrics = answer["metrics"]["speculative_decoding"]
    assert 0 < metrics["num_spec_steps"] < 30
    assert metrics["draft_acceptance_rate"] == 0


def test_without_drafts_there_is_no_rate():
    found = DraftMetrics.of([])
    assert found.summary == {
        **dict.fromkeys(SUMMARY, 0),
        "mean_acceptance_length": None,
        "draft_acceptance_rate": None,
        "acceptance_histogram": [],
    }


def test_the_engine_counts_for_each_request():
    """The drafts of a whole server with builtin:tiny. Without drafts the answers are the same."""
    requests = [("/v1/completions", REPEATED), ("/v1/completions", {**REPEATED, "prompt": "Why?", "max_tokens": 1})]
    drafted, short = asked(requests, per_request_spec_decode_metrics="detailed")
    (plain,) = asked(requests[:1], method=None, per_request_spec_decode_metrics="summary")
    assert drafted.json()["choices"] == plain.json()["choices"]
    metrics = drafted.json()["metrics"]["speculative_decoding"]
    assert metrics["num_spec_steps"] == len(metrics["per_step_accepted"]) == sum(metrics["acceptance_histogram"]) > 0
    assert 0 < metrics["num_accepted_draft_tokens"] < metrics["num_draft_tokens"] == sum(metrics["per_step_drafted"])
    assert metrics["num_accepted_draft_tokens"] + metrics["num_spec_steps"] <= 40
    for none in (short, plain):
        assert none.json()["metrics"]["speculative_decoding"]["num_spec_steps"] == 0
