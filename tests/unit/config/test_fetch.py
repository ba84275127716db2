from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.config import ModelFilesError, fetch_model, load_deployment

from .model_files import write_model


def snapshot(cache: Path, name: str) -> Path:
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    return write_model(repository / "snapshots" / "abc")


def test_what_is_here_is_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is to be downloaded")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    folder = snapshot(tmp_path, "Qwen/Qwen3-0.6B")
    words = ["--model", "Qwen/Qwen3-0.6B", "--download-dir", str(tmp_path)]
    assert fetch_model(load_deployment([], words, {})) == folder


def test_a_hub_model_and_its_tokenizer_are_downloaded_with_token_and_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: list[tuple[str, Any, Any]] = []

    def download(name: str, *, revision: str | None, cache_dir: str, token: str, allow_patterns: list[str],
                 ignore_patterns: list[str]) -> None:  # fmt: skip
        asked.append((name, revision, token))
        assert "*.bin" not in allow_patterns
        assert ("*.safetensors" in allow_patterns) == (name == "a/model")
        folder = snapshot(Path(cache_dir), name)
        if revision:
            (folder.parent.parent / "refs" / revision).write_text("abc")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    words = ["--model", "a/model", "--tokenizer", "a/words", "--revision", "v1", "--hf-token", "hf_x"]
    folder = fetch_model(load_deployment([], [*words, "--download-dir", str(tmp_path)], {}))
    assert folder.name == "abc"
    assert asked == [("a/model", "v1", "hf_x"), ("a/words", None, "hf_x")]


def test_a_hub_that_cannot_be_reached_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route to host\nwith many more lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    deployment = load_deployment([], ["--model", "a/b", "--download-dir", str(tmp_path)], {})
    with pytest.raises(ModelFilesError) as caught:
        fetch_model(deployment)
    assert str(caught.value) == "a/b: cannot be downloaded: no route to host"
    assert (caught.value.code, caught.value.exit_code) == ("M308", 3)
