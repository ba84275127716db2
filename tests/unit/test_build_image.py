"""`make image` names the image as `engine render` does, and says what is missing where nothing can build it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.build_image import command, find_builder

from stoker import __version__

ROOT = Path(__file__).parents[2]


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_the_first_builder_that_works_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program(tmp_path, "docker", "echo 'Cannot connect to the daemon' >&2; exit 1")
    program(tmp_path, "buildah", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_builder() == "buildah"


def test_without_a_builder_the_reasons_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program(tmp_path, "docker", "echo 'Cannot connect to the daemon' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tools.build_image.BUILDERS", ("docker", "podman"))
    with pytest.raises(LookupError, match=r"^docker: Cannot connect to the daemon\npodman: not installed$"):
        find_builder()


@pytest.mark.parametrize(("kind", "tag"), [("cpu", ""), ("cuda", "-cuda")])
def test_each_kind_has_a_file_and_a_tag(kind: str, tag: str):
    words = command("podman", kind, ["--build-arg", "BASE=x"])
    assert words[:2] == ["podman", "build"]
    assert (ROOT / words[words.index("--file") + 1]).is_file()
    assert words[words.index("--tag") + 1] == f"stoker:{__version__}{tag}"
    assert words[-3:] == ["--build-arg", "BASE=x", "."]
