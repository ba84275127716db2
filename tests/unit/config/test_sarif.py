from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stoker.config import ConfigError, load_deployment
from stoker.config.sarif import as_sarif


def run(folder: Path, text: str, *words: str) -> dict[str, Any]:
    file = folder / "deploy me.yaml"
    file.write_text(text)
    try:
        load_deployment([file], words, {})
    except ConfigError as error:
        log = json.loads(as_sarif(error.diagnostics))
        assert log["version"] == "2.1.0"
        (only,) = log["runs"]
        return dict(only)
    raise AssertionError("nothing is wrong with it")


def test_each_finding_has_its_place_its_level_and_its_rule(tmp_path: Path) -> None:
    found = run(tmp_path, "model: {model: x}\ncache:\n  block_sise: 16\nserver:\n  port: 1\n  port: 2\n")
    assert [result["ruleId"] for result in found["results"]] == ["C103", "C106"]
    first, second = found["results"]
    place = first["locations"][0]["physicalLocation"]
    assert place["region"] == {"startLine": 3, "startColumn": 3, "endColumn": 13}
    assert place["artifactLocation"]["uri"].endswith("deploy%20me.yaml")
    assert "did you mean `cache.block_size`?" in first["message"]["text"]
    assert first["level"] == "error"
    assert len(second["relatedLocations"]) == 1
    rules = found["tool"]["driver"]["rules"]
    assert [rules[result["ruleIndex"]]["id"] for result in found["results"]] == ["C103", "C106"]


def test_a_finding_outside_of_a_file_has_no_location(tmp_path: Path) -> None:
    (result,) = run(tmp_path, "model: {model: x}\n", "--port", "http")["results"]
    assert "locations" not in result
    assert "`server.port`" in result["message"]["text"]
