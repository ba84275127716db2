"""Deployments in real processes with a Unix socket, TLS, a logging file, or the engine in the server process."""

from __future__ import annotations

import json
import signal
import ssl
from pathlib import Path

import httpx
import pytest
import trustme
from tests.e2e.deployment import serving, write_manifest
from tests.tiny_checkpoint import write_checkpoint

BODY = {"model": "tiny", "prompt": "Hello", "max_tokens": 3, "ignore_eos": True}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.mark.slow
@pytest.mark.effect("server.uds", "server.log_format", "server.log_level", "server.on_engine_death")
def test_a_unix_socket_is_removed_when_the_engine_ends_and_is_not_restarted(checkpoint: Path, tmp_path: Path):
    options = {"uds": "api.sock", "log_format": "json", "log_level": "info", "on_engine_death": "exit"}
    manifest = write_manifest(tmp_path / "deploy.yaml", checkpoint, **options)
    path = tmp_path / "api.sock"
    with serving(manifest) as (server, url):
        with httpx.Client(base_url=url, transport=httpx.HTTPTransport(uds=str(path)), timeout=60) as client:
            assert client.post("/v1/completions", json=BODY).status_code == 200
        assert any(f"curl --unix-socket {path} http://localhost/v1/" in line for line in server.out)
        server.engine.kill()
        assert server.wait() == 1
    assert not path.exists()
    lines = [json.loads(line) for line in server.err if line.startswith("{")]
    assert any(line["message"] == "POST /v1/completions" and line["status"] == 200 for line in lines)


@pytest.mark.slow  # test_tls.py and test_logs.py test both parts in one process
@pytest.mark.effect("server.ssl_certfile", "server.log_config_file", "server.max_engine_restarts")
def test_https_is_served_and_a_logging_file_applies_to_server_and_engine(checkpoint: Path, tmp_path: Path):
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    handler = {"class": "logging.FileHandler", "filename": str(tmp_path / "all.log"), "formatter": "plain"}
    logs = {
        "version": 1,
        "formatters": {"plain": {"format": "%(process)d %(name)s %(message)s"}},
        "handlers": {"file": handler},
        "root": {"level": "DEBUG", "handlers": ["file"]},
    }
    (tmp_path / "logging.json").write_text(json.dumps(logs))
    options = {"ssl_certfile": "cert.pem", "ssl_keyfile": "key.pem", "log_config_file": "logging.json"}
    manifest = write_manifest(tmp_path / "deploy.yaml", checkpoint, **options, max_engine_restarts=0)
    content = json.loads(manifest.read_text())
    del content["server"]["log_level"]
    manifest.write_text(json.dumps(content))
    with serving(manifest) as (server, url):
        assert url.startswith("https://127.0.0.1:")
        with httpx.Client(base_url=url, verify=_trusting(tmp_path / "authority.pem"), timeout=60) as client:
            assert client.post("/v1/completions", json=BODY).status_code == 200
        engine = server.engine
        engine.kill()
        assert server.wait() == 1
    written = (tmp_path / "all.log").read_text().splitlines()
    assert any(line.startswith(f"{server.process.pid} stoker.server.http.access POST") for line in written)
    assert {line.split()[0] for line in written} == {str(server.process.pid), str(engine.pid)}


def _trusting(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority))


@pytest.mark.effect("server.disable_frontend_multiprocessing")
@pytest.mark.slow
def test_the_engine_runs_in_the_server_process_with_the_option(checkpoint: Path, tmp_path: Path):
    manifest = write_manifest(tmp_path / "deploy.yaml", checkpoint, disable_frontend_multiprocessing=True)
    with serving(manifest) as (server, url):
        answer = httpx.post(f"{url}/v1/completions", json=BODY, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 3
        assert server.engines() == []
        assert any("torch" in place.path for place in server.process.memory_maps())
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
