"""Names that lead to something else than a regular file are refused, wherever a deployment or a model has one."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.cli.batch_files import BatchOutput, open_input
from stoker.cli.transfer import TransferError
from stoker.config import ConfigError, ModelFilesError, load_deployment, read_machine_spec, read_model_files
from stoker.config.diagnostics import Diagnostic
from stoker.config.resolve.resolve import examine
from stoker.input_file import FileTooLarge, open_file, read_file
from stoker.logs import LoggingProblem, set_up_from_file
from stoker.server.http.tls import TlsFiles, TlsProblem, load_context
from stoker.text.tokenizer import Tokenizer, TokenizerError

from .config.model_files import write_model

pytestmark = pytest.mark.timeout(60)  # a reader that opens a pipe waits without end


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    os.chdir(path.parent)  # a socket's path has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)


def an_endless_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_directory(path: Path) -> None:
    path.mkdir()


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def memory_of_the_process(path: Path) -> None:
    path.symlink_to("/proc/self/mem")


def a_huge_file(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)  # a hole


KINDS: dict[Callable[[Path], None], str] = {
    a_pipe: "a named pipe, not a regular file",
    a_socket: "a socket, not a regular file",
    an_endless_device: "a device, not a regular file",
    a_directory: "is a directory",
    a_link_to_itself: "too many levels of symbolic links",
    memory_of_the_process: "input/output error",
    a_huge_file: "larger than",
}
kinds = pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@kinds
def test_only_regular_files_are_read_and_no_more_than_wanted(place: Path, make: Callable[[Path], None]) -> None:
    make(place / "x")
    with pytest.raises(OSError) as caught:  # noqa: PT011 (its text is compared below)
        read_file(place / "x", 100)
    assert KINDS[make] in (caught.value.strerror or "").lower()


def test_a_file_of_exactly_the_limit_is_read_and_none_is_opened_twice(place: Path) -> None:
    (place / "x").write_bytes(b"a" * 100)
    assert read_file(place / "x", 100) == b"a" * 100
    with pytest.raises(FileTooLarge):
        read_file(place / "x", 99)
    with open_file(place / "x") as stream:
        assert stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
        assert os.get_blocking(stream.fileno())


def test_what_replaces_a_file_before_it_is_opened_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "x").write_text("")
    opened = os.open

    def replaced(path: Path, flags: int) -> int:
        path.unlink()
        os.mkfifo(path)
        return opened(path, flags)

    monkeypatch.setattr(os, "open", replaced)
    with pytest.raises(OSError, match="a named pipe"):
        open_file(place / "x")


def examined(file: Path) -> tuple[Diagnostic, ...]:
    try:
        deployment = load_deployment([file], env={})
    except ConfigError as error:
        return error.diagnostics
    return examine(deployment, read_model_files(deployment), read_machine_spec()).findings


@kinds
@pytest.mark.parametrize(
    "value",
    ["server: {api_key: {file: x}}", "server: {chat_template: x}", "server: {log_config_file: x}", "extends: x"],
)
def test_files_that_a_manifest_names(place: Path, make: Callable[[Path], None], value: str) -> None:
    make(place / "x")
    (place / "deploy.yaml").write_text(f"model: {{model: builtin:tiny}}\n{value}\n")
    (error,) = [finding for finding in examined(place / "deploy.yaml") if finding.is_error]
    assert KINDS[make] in error.message.lower()


@kinds
def test_files_that_the_server_opens(place: Path, make: Callable[[Path], None]) -> None:
    make(place / "x")
    with pytest.raises(TlsProblem) as caught:
        load_context(TlsFiles(certificate="x", key="x"))
    assert KINDS[make] in str(caught.value).lower()
    with pytest.raises(LoggingProblem) as logging_problem:
        set_up_from_file("x")
    assert KINDS[make] in str(logging_problem.value).lower()


@pytest.mark.parametrize("make", [make for make in KINDS if make not in (a_huge_file, memory_of_the_process)])
def test_files_of_a_batch(place: Path, make: Callable[[Path], None]) -> None:
    """The input was opened whatever it was; results replaced a device; a pipe as part file was read without end."""
    make(place / "x")
    with pytest.raises(TransferError) as caught, open_input("x"):
        pass
    assert str(caught.value).startswith(f"cannot read x: {KINDS[make]}; give ")
    with pytest.raises(TransferError) as caught:
        BatchOutput("x", None, "run")
    assert str(caught.value).startswith(f"cannot write x: {KINDS[make]}; give ")
    make(place / "out.run.part")
    with pytest.raises(OSError, match=r"(?i)not a regular file|no such device|is a directory|symbolic links"):
        BatchOutput("out", None, "run")
    assert sorted(path.name for path in place.iterdir()) == ["out.run.part", "x"]


@kinds
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "model.safetensors",
        "model.safetensors.index.json",
    ],
)
def test_files_of_a_model(place: Path, make: Callable[[Path], None], name: str) -> None:
    folder = write_model(place / "model")
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    with pytest.raises(ModelFilesError) as caught:
        read_model_files(load_deployment([], ["--model", str(folder)], {}))
    is_seen = KINDS[make] in str(caught.value).lower()
    weights = name == "model.safetensors"  # a directory has never been a weight file; of a large one the header is read
    assert is_seen or (weights and make in (a_directory, a_huge_file, memory_of_the_process))


@kinds
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_files_of_a_tokenizer(place: Path, make: Callable[[Path], None], name: str) -> None:
    folder = write_model(place / "model")
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.load(folder)
    assert KINDS[make] in str(caught.value).lower() or name != "tokenizer.json"
