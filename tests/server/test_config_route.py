"""GET /config: the running values with their origins. It needs a key and shows no secret."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from .deployment import Served

KEY = {"authorization": "Bearer sk-canary-4711"}


def test_every_running_value_is_returned_with_its_origin(served: Served) -> None:
    answer = served.get("/config").json()
    assert answer["format_version"] == 1
    values = {entry["path"]: entry for entry in answer["values"]}
    assert values["model.max_model_len"]["value"] == 512
    assert values["server.drain_timeout"]["value"] == "30s"
    assert values["server.port"]["origin"]["text"] == "default"
    assert values["server.port"]["reload"] == "process"
    assert values["server.port"]["description"].startswith("TCP port to listen on.")


def test_the_route_needs_a_key_and_shows_none(folder: Path) -> None:
    servers = {"a": {"url": "http://me:canary-1@host/mcp", "allowed_tools": ["x"]}}
    served = Served(folder, api_key=(SecretStr("sk-canary-4711"),), tool_server=servers)
    assert served.get("/config").status_code == 401
    answer = served.get("/config", headers=KEY)
    assert answer.status_code == 200
    assert "canary" not in answer.text
    assert "http://[hidden]@host/mcp" in answer.text
    (key,) = [entry for entry in answer.json()["values"] if entry["path"] == "server.api_key"]
    assert key["value"] == ["**********"]
