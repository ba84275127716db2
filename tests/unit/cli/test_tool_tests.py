"""`engine test tools`."""

from __future__ import annotations

import json

import pytest

from stoker.cli.tool_tests import run


def test_the_golden_conversations_of_a_deployment_are_rendered_and_read_back(capsys: pytest.CaptureFixture[str]):
    assert run([], ["--model", "builtin:tiny"], output="json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["tool_calls"], answer["passed"]) == ("hermes", True)
    results = {test["name"]: test["result"] for test in answer["tests"]}
    assert results["two calls after a text"] == results["grammar: required"] == "ok"
    assert results["reasoning before a text"] == "skipped"


def test_a_wrong_format_fails(capsys: pytest.CaptureFixture[str]):
    assert run([], ["--model", "builtin:tiny", "--tool-call-parser", "mistral"]) == 1
    out = capsys.readouterr().out
    assert "failed   no call instead of get_weather" in out
    assert out.splitlines()[-1] == "failed"


def test_without_a_parser_nothing_is_tested(capsys: pytest.CaptureFixture[str]):
    assert run([], ["--model", "builtin:tiny", "--tool-call-parser", "none"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "passed"
