from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.app import main
from stoker.cli.diff import run
from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.config.effective import as_records, running_values


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    Path("a.yaml").write_text("model: {model: builtin:tiny}\nserver: {port: 81}\n")
    Path("b.yaml").write_text(
        "model: {model: builtin:tiny, hf_overrides: {rope_theta: 7}}\n"
        "cache: {block_size: 32}\nscheduler: {max_queued_requests: 7}\nserver: {port: 81, api_key: sk-one}\n"
    )


def lines(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Path -> what is said of it."""
    return dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())


def test_each_difference_is_a_line_with_its_consequence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a.yaml", "b.yaml", []) == 1
    said = {path: " ".join(text.split()) for path, text in lines(capsys).items()}
    assert said["cache.block_size"] == "16 (auto) -> 32 [model]"
    assert said["scheduler.max_queued_requests"] == "1024 -> 7 [next start]"
    assert said["server.api_key"] == "not set -> set [process]"
    assert said["model.hf_overrides.rope_theta"] == "(none) -> 7 [model]"
    assert "server.port" not in said


def test_the_summary_names_the_most_expensive_change(capsys: pytest.CaptureFixture[str]) -> None:
    run("a.yaml", None, ["--max-queued-requests", "7"])
    assert capsys.readouterr().err == (
        "1 difference from a.yaml to a.yaml with the options given: used from the next start\n"
    )


def test_files_with_the_same_meaning_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.yaml").write_text("extends: a.yaml\nserver:\n  port: 81.0\n  drain_timeout: 30s\n")
    assert run("a.yaml", "c.yaml", []) == 0
    assert capsys.readouterr().out == ""


def test_secrets_are_compared_and_never_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("b.yaml", "b.yaml", ["--api-key", "sk-two"]) == 1
    answer, talk = capsys.readouterr()
    assert answer == "server.api_key: set -> set  [process]\n"
    assert "sk-" not in answer + talk
    assert run("b.yaml", "b.yaml", ["--api-key", "sk-one"]) == 0


def test_a_file_of_the_same_name_in_another_folder_is_another_file() -> None:
    Path("one").mkdir()
    Path("two").mkdir()
    for folder in ("one", "two"):
        Path(folder, "deploy.yaml").write_text("model: {model: builtin:tiny}\nload: {download_dir: ./cache}\n")
    assert run("one/deploy.yaml", "two/deploy.yaml", []) == 1


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a.yaml", None, ["--port", "82"], output="json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["format_version"], answer["same"], answer["reload"]) == (1, False, "process")
    (difference,) = answer["differences"]
    assert difference["old_origin"] == "a.yaml:2:16"
    assert (difference["path"], difference["old"], difference["new"]) == ("server.port", "81", "82")


@pytest.mark.parametrize(
    "words",
    [["a.yaml"], ["a.yaml", "nowhere.yaml"], ["a.yaml", "http://127.0.0.1:1"], ["a.yaml", "b.yaml", "-o", "xml"]],
)
def test_what_cannot_be_compared_is_an_error(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["diff", *words])
    assert ended.value.code == 2


class Running(http.server.BaseHTTPRequestHandler):
    """A server that answers GET /config as a deployment would."""

    records: list[dict[str, Any]]
    keys: list[str | None]

    def do_GET(self) -> None:
        self.keys.append(self.headers["authorization"])
        found = self.path == "/config"
        body = json.dumps({"format_version": 1, "values": self.records} if found else {}).encode()
        self.send_response(200 if found else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def url(here: None) -> Iterator[str]:
    """A running server of b.yaml."""
    deployment = load_deployment(["b.yaml"], env={})
    resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
    handler = type("Handler", (Running,), {"records": as_records(running_values(resolved)), "keys": []})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_file_is_the_same_as_the_server_that_runs_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("b.yaml", url, []) == 0
    assert "server.api_key: set on both sides; a server does not show secrets" in capsys.readouterr().err


def test_a_running_server_is_the_old_side_in_either_position(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["b.yaml", url], [url + "/v1", "b.yaml"]):
        assert run(*words, ["--port", "82"]) == 1  # type: ignore[arg-type]
        assert capsys.readouterr().out == "server.port: 81 -> 82  [process]\n"
