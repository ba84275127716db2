"""Downloads from a server that speaks the hub's protocol, through huggingface_hub itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stoker.config import ModelFilesError
from stoker.config.download import download, progress_text

from .hub_server import COMMIT, HubServer, hub_server

WEIGHTS = "model.safetensors"
FILES = {"config.json": b'{"model_type": "qwen3"}', WEIGHTS: bytes(range(256)) * 1000, "notes.txt": b"not wanted"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    from huggingface_hub import constants, file_download

    bars = import_module("huggingface_hub.utils.tqdm")  # as an attribute this is a class
    monkeypatch.setattr(bars, "progress_bar_states", {})  # other tests switch bars off for the whole process
    monkeypatch.setattr(file_download.time, "sleep", lambda _: None)  # between attempts
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # bytes; an incomplete chunk is not kept
    with hub_server(FILES, monkeypatch) as server:
        yield server


def fetch(cache: Path, **options: Any) -> Path:
    options = {"revision": None, "ignored": (), "token": None, **options}
    download("a/model", cache=str(cache), allowed=("*.json", "*.safetensors"), **options)
    return cache / "models--a--model" / "snapshots" / COMMIT


def failure(cache: Path, **options: Any) -> str:
    with pytest.raises(ModelFilesError) as caught:
        fetch(cache, **options)
    assert caught.value.code == "M308"
    return str(caught.value).removeprefix("a/model: cannot be downloaded: ")


def test_files_arrive_with_their_bytes_and_progress(hub: HubServer, tmp_path: Path) -> None:
    shown: list[str] = []
    folder = fetch(tmp_path, on_progress=shown.append)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: data for name, data in FILES.items() if name != "notes.txt"
    }
    assert shown[-2:] == ["checking config.json", f"checking {WEIGHTS}"]
    assert shown[0].endswith("of 0.00 GB")


def test_a_connection_that_breaks_is_continued_where_it_broke(hub: HubServer, tmp_path: Path) -> None:
    hub.cut_after = {WEIGHTS: 100_000}
    assert (fetch(tmp_path) / WEIGHTS).read_bytes() == FILES[WEIGHTS]
    assert [wanted for name, wanted in hub.ranges if name == WEIGHTS] == [None, "bytes=100000-"]


def test_a_download_that_was_stopped_keeps_its_complete_files(hub: HubServer, tmp_path: Path) -> None:
    fetch(tmp_path, ignored=(WEIGHTS,))
    fetch(tmp_path)
    assert [name for name, _ in hub.ranges] == ["config.json", WEIGHTS]


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_a_file_that_differs_from_its_hash_is_fetched_once_more(hub: HubServer, tmp_path: Path, name: str) -> None:
    """Only its length was checked."""
    hub.damaged[name] = 1
    assert (fetch(tmp_path) / name).read_bytes() == FILES[name]
    hub.damaged[name] = 2
    second = tmp_path / "second"
    assert failure(second).startswith(f"{name} differs from its hash, twice; it was removed")
    assert not (second / "models--a--model" / "snapshots" / COMMIT / name).exists()
    assert (fetch(second) / name).read_bytes() == FILES[name]


def test_a_file_that_was_damaged_on_the_disk_is_found_by_the_next_download(hub: HubServer, tmp_path: Path) -> None:
    blob = (fetch(tmp_path) / WEIGHTS).resolve()
    blob.write_bytes(bytes(len(FILES[WEIGHTS])))
    assert (fetch(tmp_path) / WEIGHTS).read_bytes() == FILES[WEIGHTS]


@pytest.mark.parametrize(
    ("status", "word", "reason"),
    [
        (404, "RepoNotFound", "the hub has no such repository, or it is private; check the name and `model.hf_token`"),
        (401, "RepoNotFound", "the hub has no such repository, or it is private; check the name and `model.hf_token`"),
        (404, "RevisionNotFound", "the repository has no revision v7"),
        (401, "", "the hub refused access (HTTP 401); check `model.hf_token` and what it may read"),
        (403, "", "the hub refused access (HTTP 403); check `model.hf_token` and what it may read"),
        (
            403,
            "GatedRepo",
            "the model is gated; accept its terms on its page of the hub, and give that user's `model.hf_token`",
        ),
    ],
)
def test_a_refusal_says_what_to_do(hub: HubServer, tmp_path: Path, status: int, word: str, reason: str) -> None:
    hub.refusal = status, word
    assert failure(tmp_path, revision="v7") == reason


def test_a_hub_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub_server(FILES, monkeypatch) as server:
        pass
    assert failure(tmp_path).startswith(f"{server.url} cannot be reached: ")


def test_a_full_disk_is_named(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import file_download

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file_download, "_chmod_and_move", full)
    assert failure(tmp_path).startswith(f"no space left in {tmp_path}; `load.download_dir` may be on another disk")


def test_progress_is_one_line() -> None:
    assert (
        progress_text(500_000_000, 2_000_000_000, 25e6)
        == f"{'━' * 5}{'─' * 15}  25%, 0.50 of 2.00 GB, 25.0 MB/s, 1:00 left"
    )
    assert progress_text(0, 1_000_000_000, None) == f"{'─' * 20}   0%, 0.00 of 1.00 GB"
