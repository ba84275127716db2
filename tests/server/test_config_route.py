"""GET /config: what runs, with origins; behind the key; no secret in it."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from .deployment import Served

KEY = {"authorization": "Bearer sk-planted-4711"}


def test_every_value_that_runs_is_told_with_its_origin(served: Served) -> None:
    answer = served.get("/config").json()
    assert answer["format_version"] == 1
    values = {entry["path"]: entry for entry in answer["values"]}
    assert values["model.max_model_len"]["value"] == 512
    assert values["server.drain_timeout"]["value"] == "30s"
    assert values["server.port"]["origin"]["text"] == "default"
    assert values["server.port"]["reload"] == "process"


def test_it_is_behind_the_key_and_shows_none(folder: Path) -> None:
    served = Served(folder, api_key=(SecretStr("sk-planted-4711"),))
    assert served.get("/config").status_code == 401
    answer = served.get("/config", headers=KEY)
    assert answer.status_code == 200
    assert "sk-planted" not in answer.text
    (key,) = [entry for entry in answer.json()["values"] if entry["path"] == "server.api_key"]
    assert key["value"] == ["**********"]
