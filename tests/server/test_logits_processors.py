"""The request field `logits_processors`: accepted if the deployment has a pattern, otherwise a 400."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.engine.api import ProcessorCall

from .deployment import Served


@pytest.fixture
def allowing(folder: Path) -> Served:
    return Served(folder, model={"logits_processor_pattern": r"mine\.\w+[.:]\w+"})


@pytest.mark.parametrize("route", ["chat", "complete"])
def test_paths_and_calls_are_passed_to_the_engine(allowing: Served, route: str):
    calls = ["mine.logits:Ban", {"qualname": "mine.logits.Only", "args": [7, "x"], "kwargs": {"a": {"b": None}}}]
    assert getattr(allowing, route)(logits_processors=calls, max_tokens=1).status_code == 200
    assert allowing.engine.requests[0].inputs.sampling.logits_processors == (
        ProcessorCall("mine.logits:Ban"),
        ProcessorCall("mine.logits.Only", (7, "x"), {"a": {"b": None}}),
    )


@pytest.mark.effect("model.logits_processor_pattern")
@pytest.mark.parametrize("stream", [False, True])
def test_without_a_pattern_a_request_with_processors_is_refused(served: Served, allowing: Served, stream: bool):
    fields: dict[str, Any] = {"logits_processors": ["mine.logits:Ban"], "max_tokens": 1, "stream": stream}
    refused = served.chat(**fields)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "logits_processors"
    assert refused.json()["error"]["code"] == "unsupported_parameter"
    assert not served.engine.requests
    assert allowing.chat(**fields).status_code == 200


def test_an_empty_list_needs_no_pattern(served: Served):
    assert served.chat(logits_processors=None, max_tokens=1).status_code == 200
    assert served.chat(logits_processors=[], max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (["os.system"], "logits_processors"),
        (["mine.logits:Ban.__init__"], "logits_processors"),
        ("mine.logits:Ban", "logits_processors"),
        ([7], "logits_processors[0]"),
        (["mine.logits:Ban", {"args": []}], "logits_processors[1].qualname"),
        ([{"qualname": "mine.logits:Ban", "args": {}}], "logits_processors[0].args"),
        ([{"qualname": "mine.logits:Ban", "kwargs": []}], "logits_processors[0].kwargs"),
        ([{"qualname": "mine.logits:Ban", "more": 1}], "logits_processors[0]"),
        (["m" * 257], "logits_processors[0].qualname"),
        (["mine.logits:Ban"] * 17, "logits_processors"),
    ],
)
def test_an_invalid_list_of_processors_is_refused_with_its_position(allowing: Served, value: Any, param: str):
    answer = allowing.chat(logits_processors=value)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert not allowing.engine.requests
