"""Errors of wrong fields are written by this project, in its words, for every type of error that a body can cause."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from stoker.server.protocol.errors import ApiError
from stoker.server.protocol.json import read
from stoker.server.request_jobs import MODELS

CHAT = {"messages": [{"role": "user", "content": "x"}]}


def error(fields: dict[str, Any], model: str = "ChatRequest") -> tuple[str, str | None]:
    with pytest.raises(ApiError) as failed:
        read(MODELS[model], json.dumps({**CHAT, **fields}).encode())
    return failed.value.message, failed.value.param


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 9}, "`temperature` must be at most 2"),
        ({"n": 0}, "`n` must be at least 1"),
        ({"timeout": 0}, "`timeout` must be greater than 0"),
        ({"n": 1.5}, "`n` must be an integer"),
        ({"stream": "x"}, "`stream` must be true or false"),
        ({"guided_json": 5}, "`guided_json` must be an object or a string"),
        ({"tool_choice": 5}, "`tool_choice` must be a string or an object"),
        ({"stop": 7}, "`stop`: must be a string or a list of strings"),
        ({"tools": [5]}, "`tools[0]` must be an object"),
        ({"messages": []}, "`messages` must have at least 1 entry"),
        ({"tools": [{}] * 1025}, "`tools` must have at most 1024 entries"),
        ({"bad_words": [""]}, "`bad_words[0]` must have at least 1 character"),
        ({"reasoning_format": "x"}, "`reasoning_format` must be 'none', 'auto', 'deepseek' or 'deepseek-legacy'"),
        ({"logit_bias": {"1": "x"}}, "`logit_bias.1` must be a number"),
    ],
)
def test_a_wrong_field_is_described_in_plain_words(fields: dict[str, Any], message: str):
    assert error(fields)[0] == message


MANY = dict.fromkeys(map(str, range(2000)), 5)
INPUTS: dict[str, Any] = {
    "CohereEmbedRequest": ["x"],
    "TeiSimilarityRequest": {"source_sentence": "x", "sentences": ["x"]},
}
WRONG = [5, -(10**30), 10**30, 1.5, "x" * 70_000, [], [5] * 2000, {}, {"x": {}}, True, MANY]
FOREIGN = ("should", "valid dictionary", "instance of", "after validation", "is not valid")


def errors_of(model: str) -> Iterator[tuple[str, ApiError]]:
    """Each field and the error of a wrong value of it."""
    valid = {**CHAT, "prompt": "x", "tokens": [], "token_ids": [5], "input": "x", "max_tokens": 5}
    valid |= {"queries": "x", "query": "x", "documents": [{"text": "x"}], "inputs": INPUTS.get(model, "x"), "ids": [5]}
    for field in MODELS[model].model_fields:
        for value in WRONG:
            try:
                read(MODELS[model], json.dumps({**valid, field: value}).encode())
            except ApiError as failed:
                yield field, failed


def test_no_field_of_any_route_has_an_error_in_the_words_of_the_library():
    """Before, among others: "list should have at most 128 items after validation", for a place `tool_choice.str`."""
    for model in MODELS:
        for field, failed in errors_of(model):
            shown, param = f"{model}.{field}: {failed.message[:200]}", failed.param or field
            assert not [words for words in FOREIGN if words in failed.message], shown
            assert param.startswith(field), shown
            assert "dict[" not in param, shown
            assert not param.endswith((".str", ".bool")), shown
