"""deploy.yaml in the current folder is the deployment of a command line that names none."""

from pathlib import Path

import pytest

from stoker.cli.default_file import default_files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_file_of_the_current_folder_is_used(folder: Path) -> None:
    """`engine up` in a folder with deploy.yaml said that `model.model` is missing, and to write it in a file."""
    (folder / "deploy.yml").write_text("")
    assert default_files([]) == ["deploy.yml"]
    (folder / "deploy.yaml").write_text("")
    assert default_files([]) == ["deploy.yaml"]
    assert default_files(["--port", "9000", "--scheduler.max-num-seqs", "4"]) == ["deploy.yaml"]


@pytest.mark.parametrize(
    "words", [["--model", "builtin:tiny"], ["--model.model=builtin:tiny"], ["--config", "flat.yaml"]]
)
def test_a_model_or_a_file_that_is_named_is_served_alone(folder: Path, words: list[str]) -> None:
    (folder / "deploy.yaml").write_text("")
    assert default_files(words) == []


def test_a_model_in_the_environment_is_served_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "deploy.yaml").write_text("")
    monkeypatch.setenv("ENGINE__MODEL__MODEL", "builtin:tiny")
    assert default_files([]) == []


def test_without_a_file_there_is_none(folder: Path) -> None:
    (folder / "deploy.yaml").mkdir()
    assert default_files([]) == []
