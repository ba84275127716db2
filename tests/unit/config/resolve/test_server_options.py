"""What `server` options become, and what is said of those that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.config import ConfigError, MachineSpec, load_deployment, read_model_files, resolve_deployment
from stoker.config.resolve.resolved import ResolvedServer

from ..deployments import MACHINE
from ..model_files import write_model


def server_of(folder: Path, text: str = "", *words: str, machine: MachineSpec = MACHINE) -> ResolvedServer:
    """Of a manifest in `folder` with this `server` section."""
    file = folder / "deploy.yaml"
    file.write_text(f"model: {{model: {write_model(folder / 'model')}}}\nserver: {{{text}}}")
    deployment = load_deployment([file], words, {})
    return resolve_deployment(deployment, read_model_files(deployment), machine).server


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        server_of(folder, text)
    assert caught.value.exit_code == 78
    return str(caught.value)


def test_files_are_relative_to_the_manifest_that_names_them(tmp_path: Path) -> None:
    server = server_of(tmp_path, "uds: run/api.sock, ssl_keyfile: ../k.pem, ssl_certfile: /etc/c.pem")
    assert server.uds == str(tmp_path / "run/api.sock")
    assert server.ssl_keyfile == str(tmp_path.parent / "k.pem")
    assert server.ssl_certfile == "/etc/c.pem"


def test_the_http_log_level_is_the_general_one_unless_written(tmp_path: Path) -> None:
    assert server_of(tmp_path, "log_level: warning").http_log_level == "warning"
    assert server_of(tmp_path, "log_level: warning, http_log_level: trace").http_log_level == "trace"


@pytest.mark.parametrize(
    ("max_open_files", "expected"),
    [(None, (8192, 6144)), (1 << 20, (8192, 6144)), (1024, (960, 720))],
)
def test_connections_are_limited_to_the_files_that_the_process_may_open(
    tmp_path: Path, max_open_files: int | None, expected: tuple[int, int]
) -> None:
    machine = MACHINE.model_copy(update={"max_open_files": max_open_files})
    server = server_of(tmp_path, machine=machine)
    assert (server.max_connections, server.max_connections_per_client) == expected


def test_the_limits_of_connections_and_bodies_follow_each_other_unless_written(tmp_path: Path) -> None:
    assert server_of(tmp_path, "max_connections: 100").max_connections_per_client == 75
    assert server_of(tmp_path, "max_connections: 100, max_connections_per_client: 9").max_connections_per_client == 9
    assert server_of(tmp_path, "max_request_bytes: 1MiB").max_total_request_bytes == 8 * 1024**2


def test_the_parser_holds_twice_the_largest_header_unless_written(tmp_path: Path) -> None:
    assert server_of(tmp_path).max_incomplete_header_bytes == 64 * 1024
    assert server_of(tmp_path, "max_header_bytes: 1MiB").max_incomplete_header_bytes == 2 * 1024**2
    assert server_of(tmp_path, "max_incomplete_header_bytes: 4MiB").max_incomplete_header_bytes == 4 * 1024**2


@pytest.mark.parametrize(
    "words", [["https://a.example", "http://localhost:3000"], ['["https://a.example", "http://localhost:3000"]']]
)
def test_origins_are_words_or_one_list(tmp_path: Path, words: list[str]) -> None:
    server = server_of(tmp_path, "", "--allowed-origins", *words)
    assert server.allowed_origins == ("https://a.example", "http://localhost:3000")


@pytest.mark.effect("server.auth")
def test_an_address_that_others_reach_is_served_without_keys_only_if_it_is_written(tmp_path: Path) -> None:
    assert "R201" in refusal(tmp_path, "host: 0.0.0.0")
    assert server_of(tmp_path, "host: 0.0.0.0, auth: none").auth == "none"
    assert server_of(tmp_path, "host: 0.0.0.0, uds: api.sock").uds  # which others do not reach


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("headless: true", "data_parallel_address"),
    ],
)
def test_what_this_build_cannot_do_is_refused_with_what_it_does(tmp_path: Path, text: str, instead: str) -> None:
    assert instead in refusal(tmp_path, text)


def test_what_this_build_does_anyway_may_be_written(tmp_path: Path) -> None:
    assert server_of(tmp_path, "headless: false").headless is False


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", ":1:2: invalid JSON: "),
        ("[]", ": not a JSON object"),
        ("\xff", ": invalid JSON: not UTF-8: byte 0xff at offset 0"),
        (None, ": no such file"),
    ],
)
def test_a_logging_file_is_read_before_anything_is_loaded(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "logging.json").write_text(content, "latin-1")
    assert f"{tmp_path / 'logging.json'}{said}" in refusal(tmp_path, "log_config_file: logging.json")
