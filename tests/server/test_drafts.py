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


QUESTION: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What does --max-num-seqs do?"}],
    "temperature": 0,
    "max_tokens": 60,
}
CHAT = "/v1/chat/completions"


def predicted(content: Any, **more: Any) -> dict[str, Any]:
    return {**QUESTION, "prediction": {"type": "content", "content": content}, **more}


def counts_of(response: httpx.Response) -> tuple[int, int]:
    details = response.json()["usage"]["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


def test_a_predicted_answer_is_verified_and_another_one_changes_nothing():
    """Earlier answers are not kept here: they would be found, too."""
    (plain,) = asked([(CHAT, QUESTION)], method=None)
    answer: str = plain.json()["choices"][0]["message"]["content"]
    parts = [{"type": "text", "text": answer[:40]}, {"type": "text", "text": answer[40:]}]
    bodies = [
        *(
            QUESTION,
            predicted(answer),
            predicted(parts),
            predicted(f"Certainly. {answer}"),
            predicted("No answer at all."),
        ),
        predicted(answer, stream=True, stream_options={"include_usage": True}),
    ]
    without, whole, of_parts, later, wrong, streamed = asked(
        [(CHAT, body) for body in bodies], past_output_tokens=0, per_request_spec_decode_metrics="summary"
    )
    for each in (without, whole, of_parts, later, wrong):
        assert each.json()["choices"] == plain.json()["choices"]
    assert "accepted_prediction_tokens" not in without.json()["usage"]["completion_tokens_details"]
    num_tokens = plain.json()["usage"]["completion_tokens"]
    accepted, rejected = counts_of(whole)
    assert (rejected, 0.8 * num_tokens < accepted < num_tokens) == (0, True)
    assert counts_of(of_parts) == counts_of(whole)
    assert counts_of(later)[0] > 0.5 * num_tokens
    assert counts_of(wrong)[0] == 0 < counts_of(wrong)[1]
    metrics = whole.json()["metrics"]["speculative_decoding"]
    assert metrics["num_accepted_draft_tokens"] >= accepted
    assert metrics["num_spec_steps"] < num_tokens / 4
    usage = chunks(streamed.text)[-1]["usage"]["completion_tokens_details"]
    assert (usage["accepted_prediction_tokens"], usage["rejected_prediction_tokens"]) == (accepted, rejected)


def test_without_drafts_a_prediction_has_no_effect(served: Served):
    plain, with_prediction = (served.post(CHAT, body) for body in (QUESTION, predicted("Hello")))
    assert with_prediction.json()["choices"] == plain.json()["choices"]
    assert counts_of(with_prediction) == (0, 0)
    assert served.engine.requests[-1].prediction == []


@pytest.mark.parametrize(
    ("prediction", "param", "code"),
    [
        ({"content": "x"}, "prediction.type", "missing_required_parameter"),
        ({"type": "text", "content": "x"}, "prediction.type", None),
        ({"type": "content"}, "prediction.content", "missing_required_parameter"),
        ({"type": "content", "content": 7}, "prediction.content", "invalid_type"),
        (
            {"type": "content", "content": [{"type": "image_url"}]},
            "prediction.content[0].type",
            "unsupported_parameter",
        ),
        ({"type": "content", "content": [{"type": "text"}]}, "prediction.content[0].text", "invalid_type"),
        ({"type": "content", "content": ["x"] * 1025}, "prediction.content", "array_above_max_length"),
        ({"type": "content", "content": "Hello " * 600}, "prediction.content", "context_length_exceeded"),
        ({"type": "content", "content": "Hello " * 60_000}, "prediction.content", "context_length_exceeded"),
        ("x", "prediction", "invalid_type"),
    ],
)
def test_a_prediction_is_checked_like_a_prompt(served: Served, prediction: Any, param: str, code: str | None):
    response = served.post(CHAT, {**QUESTION, "prediction": prediction})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert code in (None, error["code"])


def test_an_answer_is_drafted_from_an_earlier_one_of_no_other_tenant():
    """The second request of a tenant that shares gets its answer in few steps; salts share nothing, not even alike."""
    salted = {**QUESTION, "cache_salt": "tenant"}
    bodies = [salted, QUESTION, salted, QUESTION, salted]
    found = asked([(CHAT, body) for body in bodies], per_request_spec_decode_metrics="summary")
    accepted = [each.json()["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] for each in found]
    assert accepted[3] > 20
    assert [accepted[index] for index in (0, 1, 2, 4)] == [0, 0, 0, 0]
    assert len({each.json()["choices"][0]["message"]["content"] for each in found}) == 1
    off = asked([(CHAT, QUESTION)] * 2, per_request_spec_decode_metrics="summary", past_output_tokens=0)
    assert [each.json()["metrics"]["speculative_decoding"]["num_draft_tokens"] for each in off] == [0, 0]
