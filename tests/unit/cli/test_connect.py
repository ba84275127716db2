"""The configuration of a coding agent, as the agent reads it."""

from __future__ import annotations

import json
import os
import shlex
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from tests.server.deployment import Served
from tests.tiny_tokenizer import write_tokenizer

from stoker.cli.connect import Client, run
from stoker.cli.flags.writing import ConnectFlags

MANIFEST = """\
model: {model: builtin:tiny, max_model_len: 512, served_model_name: [org/tiny, tiny]}
server: {port: 8123, api_key: [{env: TEAM_KEY}]}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TEAM_KEY", "sk-secret-4711")
    (tmp_path / "deploy.yaml").write_text(MANIFEST)
    return str(tmp_path / "deploy.yaml")


def printed(capsys: pytest.CaptureFixture[str], client: Any, file: str, **options: Any) -> str:
    assert run(client, [file], [], ConnectFlags(**options)) == 0
    text = capsys.readouterr().out
    assert "sk-secret-4711" not in text
    return text


def test_codex_gets_a_provider_and_a_catalogue(file: str, capsys: pytest.CaptureFixture[str]):
    read = tomllib.loads(printed(capsys, "codex", file))
    provider = read["model_providers"][read["model_provider"]]
    assert (read["model"], read["model_context_window"]) == ("tiny", 512)
    assert provider["base_url"] == "http://127.0.0.1:8123/v1"
    assert (provider["env_key"], provider["wire_api"]) == ("TEAM_KEY", "responses")
    (model,) = json.loads(printed(capsys, "codex", file, catalogue=True))["models"]
    assert model["supports_parallel_tool_calls"]
    assert [level["effort"] for level in model["supported_reasoning_levels"]] == ["none", "medium"]
    assert (model["slug"], model["context_window"], model["apply_patch_tool_type"]) == ("tiny", 512, "freeform")


def test_claude_code_gets_variables(file: str, capsys: pytest.CaptureFixture[str]):
    lines = printed(capsys, "claude-code", file, url="https://llm.example/v1/").splitlines()[1:]
    values = dict(shlex.split(line)[1].split("=", 1) for line in lines)
    assert values["ANTHROPIC_BASE_URL"] == "https://llm.example"
    assert values["ANTHROPIC_AUTH_TOKEN"] == "$TEAM_KEY"
    assert {values[f"ANTHROPIC_DEFAULT_{size}_MODEL"] for size in ("OPUS", "SONNET", "HAIKU")} == {"tiny"}
    assert values["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "512"


def test_opencode_and_continue_get_their_files(file: str, capsys: pytest.CaptureFixture[str]):
    opencode = json.loads(printed(capsys, "opencode", file))
    provider = opencode["provider"]["stoker"]
    assert (opencode["model"], provider["options"]["apiKey"]) == ("stoker/tiny", "{env:TEAM_KEY}")
    assert provider["models"]["tiny"]["limit"]["context"] == 512
    (model,) = yaml.safe_load(printed(capsys, "continue", file))["models"]
    assert (model["apiBase"], model["apiKey"]) == ("http://127.0.0.1:8123/v1", "${{ secrets.TEAM_KEY }}")


def sent_by(client: str, text: str) -> tuple[str, str, str, dict[str, Any]]:
    """The variable with the key, the address, the model, and the fields of a first request of a client."""
    question = [{"role": "user", "content": "Hi"}]
    match client:
        case "claude-code":
            values = dict(shlex.split(line)[1].split("=", 1) for line in text.splitlines()[1:])
            url = values["ANTHROPIC_BASE_URL"] + "/v1/messages"
            key = values["ANTHROPIC_AUTH_TOKEN"].removeprefix("$")
            return key, url, values["ANTHROPIC_MODEL"], {"messages": question, "max_tokens": 2}
        case "codex":
            read = tomllib.loads(text)
            provider = read["model_providers"][read["model_provider"]]
            fields = {"input": question, "max_output_tokens": 2}
            return provider["env_key"], f"{provider['base_url']}/{provider['wire_api']}", read["model"], fields
        case "opencode":
            read = json.loads(text)
            provider, _, model = read["model"].partition("/")
            options = read["provider"][provider]["options"]
            key, url = options["apiKey"].removeprefix("{env:").rstrip("}"), options["baseURL"]
            assert model in read["provider"][provider]["models"]
        case "continue":
            (found,) = yaml.safe_load(text)["models"]
            key, url, model = found["apiKey"].split(".")[1].split()[0], found["apiBase"], found["model"]
        case _:
            raise AssertionError(f"{client} is not tried")
    return key, f"{url}/chat/completions", model, {"messages": question, "max_tokens": 2}


@pytest.mark.parametrize("client", get_args(Client))
@pytest.mark.parametrize(
    ("names", "aliases", "used"),
    [
        (["org/tiny"], {"claude-*": "org/tiny"}, "claude-stoker"),
        (["org/tiny"], {"[ab]*": "org/tiny", "tiny": "org/tiny"}, "tiny"),
        (["org/tiny", "plain"], {"claude-*": "org/tiny"}, "plain"),
    ],
)
def test_what_each_client_reads_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    client: Any, names: list[str], aliases: dict[str, str], used: str,
):  # fmt: skip
    monkeypatch.setenv("TEAM_KEY", "sk-secret-4711")
    file = tmp_path / "deploy.yaml"
    model = {"model": "builtin:tiny", "max_model_len": 512, "served_model_name": names}
    server = {"port": 8123, "api_key": [{"env": "TEAM_KEY"}], "model_aliases": aliases}
    file.write_text(yaml.safe_dump({"model": model, "server": server}))
    key, url, name, fields = sent_by(client, printed(capsys, client, str(file)))
    assert name == (used if client == "claude-code" else names[-1])
    served = Served(
        write_tokenizer(tmp_path / "tokenizer"),
        model={"served_model_name": tuple(names)},
        api_key=["sk-secret-4711"],
        model_aliases=aliases,
    )
    headers = {"authorization": f"Bearer {os.environ[key]}"}
    answer = served.post(url.removeprefix("http://127.0.0.1:8123"), {"model": name, **fields}, headers=headers)
    assert answer.status_code == 200, answer.text


def test_what_a_client_cannot_use_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "deploy.yaml"
    file.write_text("model: {model: builtin:tiny, served_model_name: org/tiny}\n")
    assert run("claude-code", [str(file)], [], ConnectFlags()) == 78
    assert "`model.served_model_name`" in capsys.readouterr().err
    file.write_text("model: {model: builtin:tiny}\nserver: {uds: /run/x.sock}\n")
    assert run("opencode", [str(file)], [], ConnectFlags()) == 78
    assert "--url" in capsys.readouterr().err
    file.write_text("model: {model: absent/model}\n")
    assert run("opencode", [str(file)], [], ConnectFlags()) == 4
    assert "`model.max_model_len`" in capsys.readouterr().err
