"""`engine up` with a connector of the user's own: a second start reads what the first one has stored."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from tests.blocks_over_http import MODULE, shown, storage

from .deployment import Server, command, environment
from .test_nodes import started

pytestmark = pytest.mark.slow

PROMPT = "The engine reads what another one has computed. " * 12


def write(folder: Path, url: str, num_processes: int = 1, **transfer: Any) -> Path:
    """The deployment and the module of the guide, with a small model that several processes compute."""
    (folder / f"{MODULE}.py").write_text(shown("python"))
    (folder / "failing.py").write_text(
        f"from {MODULE} import HttpStore\n\nclass Failing(HttpStore):\n    def load(self, keys):\n        1 / 0\n"
    )
    manifest = yaml.safe_load(shown("yaml"))
    manifest["model"] = {"model": "builtin:tiny", "dtype": "float32"}
    manifest["parallel"] = {"tensor_parallel_size": num_processes}
    manifest["server"] = {"port": 0, "enable_prompt_tokens_details": True}
    manifest["kv_transfer"]["kv_connector_extra_config"]["url"] = url
    manifest["kv_transfer"] |= transfer
    file = folder / "deploy.yaml"
    file.write_text(json.dumps(manifest))
    return file


def run(file: Path, num_answers: int = 1) -> tuple[list[str], int, str]:
    """Texts of the same prompt, tokens of the first that were read, and the log of the server."""
    server = Server(file)
    with started(server):
        client = openai.OpenAI(base_url=f"{server.wait_ready()}/v1", api_key="none", max_retries=0)
        answers = [
            client.completions.create(model="builtin:tiny", prompt=PROMPT, temperature=0, max_tokens=12)
            for _ in range(num_answers)
        ]
        cached = answers[0].usage.prompt_tokens_details.cached_tokens
        return [each.choices[0].text for each in answers], cached, "".join(server.err)


def test_a_second_start_reads_a_prompt_and_one_that_cannot_computes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with storage() as server:
        file = write(tmp_path, server.url)
        first, num_cached, _ = run(file)
        assert num_cached == 0
        assert server.stored
        again, num_cached, _ = run(file)
        assert again == first
        assert num_cached >= 16 * (len(server.stored) - 2)
        texts, num_cached, _ = run(write(tmp_path, server.url, num_processes=2))
        assert texts == first
        assert num_cached >= 16 * (len(server.stored) - 2)
        file = write(tmp_path, server.url, kv_connector="failing:Failing", kv_connector_module_path=None)
        texts, num_cached, log = run(file, 3)
        assert texts == 3 * first
        assert num_cached == 0
        assert log.count("ZeroDivisionError") == 1


def test_a_missing_module_is_valid_and_ends_the_start_with_the_line_of_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "deploy.yaml"
    file.write_text(
        "model: {model: builtin:tiny}\n"
        "server: {port: 0}\n"
        "kv_transfer:\n"
        "  kv_connector: OwnStore\n"
        "  kv_connector_module_path: nowhere.stores\n"
    )

    def engine(word: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(word, str(file)), capture_output=True, text=True, env=environment(), timeout=240, check=False
        )

    assert engine("validate").returncode == 0
    ended = engine("up")
    assert ended.returncode == 78
    assert "deploy.yaml:4:17): nowhere.stores:OwnStore: nowhere.stores cannot be imported" in ended.stderr
