"""What `engine up` finds out before the weights load, and the codes it ends with."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from stoker.cli.up import run
from stoker.server.http.address import UnixSocket


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code and the last line."""
    port = [] if "--uds" in words else ["--port", "0"]
    code = run([], ["--model", "builtin:tiny", *port, *words])
    err = capsys.readouterr().err
    assert "weights" not in err
    assert "Traceback" not in err
    return code, err.splitlines()[-1]


def test_middleware_that_cannot_be_imported_is_a_mistake_of_the_configuration(capsys: pytest.CaptureFixture[str]):
    code, last = fails(capsys, "--middleware", "no.such.Thing")
    assert code == 78
    assert last.startswith(
        "error: `server.middleware`: no.such.Thing: no.such cannot be imported: ModuleNotFoundError: "
    )


def test_tls_files_that_do_not_fit_are_a_matter_of_the_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    authority = trustme.CA()
    one, two = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    one.cert_chain_pems[0].write_to_path(tmp_path / "c.pem")
    two.private_key_pem.write_to_path(tmp_path / "k.pem")
    words = ["--ssl-certfile", str(tmp_path / "c.pem"), "--ssl-keyfile", str(tmp_path / "k.pem")]
    code, last = fails(capsys, *words)
    assert code == 4
    assert "is not the key of the first certificate" in last


def test_a_unix_socket_in_use_is_a_matter_of_the_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "api.sock"
    taken = UnixSocket(str(path))
    code, last = fails(capsys, "--uds", str(path))
    assert (code, last) == (4, "  = fix: stop that process, or choose another address with --port or --uds")
    taken.close()


def test_a_logging_file_that_python_refuses_is_a_mistake_of_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "logging.json").write_text('{"version": 2}')
    code, last = fails(capsys, "--log-config-file", str(tmp_path / "logging.json"))
    assert code == 78
    assert "Unsupported version: 2" in last
