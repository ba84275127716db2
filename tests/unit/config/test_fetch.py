from __future__ import annotations

from collections.abc import Callable
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
                 ignore_patterns: list[str]) -> str:  # fmt: skip
        asked.append((name, revision, token))
        assert "*.bin" not in allow_patterns
        assert ("*.safetensors" in allow_patterns) == (name == "a/model")
        folder = snapshot(Path(cache_dir), name)
        if revision:
            (folder.parent.parent / "refs" / revision).write_text("abc")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    words = ["--model", "a/model", "--tokenizer", "a/words", "--revision", "v1", "--hf-token", "hf_x"]
    folder = fetch_model(load_deployment([], [*words, "--download-dir", str(tmp_path)], {}))
    assert folder.name == "abc"
    assert asked == [("a/model", "v1", "hf_x"), ("a/words", None, "hf_x")]


@pytest.mark.effect("model.code_revision")
def test_code_of_a_repository_is_downloaded_at_its_commit_and_never_at_a_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: list[tuple[str | None, list[str]]] = []

    def download(name: str, *, revision: str | None, allow_patterns: list[str], **_: Any) -> str:
        asked.append((revision, allow_patterns))
        code = tmp_path / f"models--{name.replace('/', '--')}" / "snapshots" / str(revision)
        code.mkdir()
        (code / "modeling.py").write_text("")
        return str(code)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    folder = snapshot(tmp_path, "a/model")
    words = ["--model", "a/model", "--download-dir", str(tmp_path), "--skip-tokenizer-init"]
    words += ["--trust-remote-code", "--model-impl", "transformers"]
    commit = "0f" * 20
    assert fetch_model(load_deployment([], [*words, "--code-revision", commit], {})) == folder
    assert asked == [(commit, ["*.py"])]
    for unpinned in ([], ["--code-revision", "main"]):
        with pytest.raises(ModelFilesError, match=r"`model\.code_revision` is no commit"):
            fetch_model(load_deployment([], [*words, *unpinned], {}))
    assert len(asked) == 1


def test_a_hub_that_cannot_be_reached_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route to host\nwith many more lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    deployment = load_deployment([], ["--model", "a/b", "--download-dir", str(tmp_path)], {})
    with pytest.raises(ModelFilesError) as caught:
        fetch_model(deployment)
    assert str(caught.value) == "a/b: cannot be downloaded: https://huggingface.co cannot be reached: no route to host"
    assert (caught.value.code, caught.value.exit_code) == ("M308", 3)


class Hub:
    """Repositories as name -> files, and a `snapshot_download` that copies what is allowed into a cache."""

    def __init__(self, **repositories: list[str]) -> None:
        self.repositories = {name.replace("__", "/"): files for name, files in repositories.items()}
        self.asked: list[tuple[str, str | None, str | bool | None]] = []

    def download(
        self,
        name: str,
        *,
        revision: str | None,
        cache_dir: str,
        token: str | bool | None,
        allow_patterns: list[str],
        ignore_patterns: list[str],
    ) -> str:
        from huggingface_hub.utils import filter_repo_objects

        self.asked.append((name, revision, token))
        repository = Path(cache_dir) / f"models--{name.replace('/', '--')}"
        folder = repository / "snapshots" / f"at-{revision or 'main'}"
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / (revision or "main")).write_text(folder.name)
        chosen = filter_repo_objects(
            self.repositories[name], allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        )
        for file in chosen:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text("{}")
        return str(folder)


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Path, list[str], Hub]]:
    """Fetch with these words from this hub: the folder, the files in it, and what was asked."""
    import huggingface_hub

    def of(hub: Hub, *words: str) -> tuple[Path, list[str], Hub]:
        monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.download)
        folder = fetch_model(load_deployment([], ["--download-dir", str(tmp_path), *words], {}))
        return folder, sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()), hub

    return of


Fetched = Callable[..., tuple[Path, list[str], Hub]]
BOTH = ["config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json", "original/model.safetensors"]
OLD = ["config.json", "pytorch_model.bin", "tokenizer.json", "training_args.bin"]


@pytest.mark.effect("load.download_dir", "load.load_format", "load.ignore_patterns")
def test_only_the_files_of_the_format_are_downloaded(fetched: Fetched, tmp_path: Path) -> None:
    folder, files, _ = fetched(Hub(a__both=BOTH), "--model", "a/both")
    assert tmp_path in folder.parents
    assert files == ["config.json", "model.safetensors", "tokenizer.json"]
    assert "pytorch_model.bin" in fetched(Hub(a__torch=BOTH), "--model", "a/torch", "--load-format", "pt")[1]
    bare = fetched(Hub(a__bare=BOTH), "--model", "a/bare", "--load-format", "dummy")[1]
    assert bare == ["config.json", "tokenizer.json"]
    words = ["--model", "a/all", "--ignore-patterns", "tokenizer*", "--ignore-patterns", "*.txt"]
    assert fetched(Hub(a__all=[*BOTH, "notes.txt"]), *words, "--skip-tokenizer-init")[1] == [
        *("config.json", "model.safetensors", "original/model.safetensors")
    ]


def test_torchs_files_are_downloaded_where_there_are_no_safetensors(fetched: Fetched) -> None:
    _, files, hub = fetched(Hub(a__old=OLD), "--model", "a/old")
    assert "pytorch_model.bin" in files
    num_asked = len(hub.asked)
    fetched(hub, "--model", "a/old")
    assert len(hub.asked) == num_asked


OWN = ["params.json", "consolidated-00001-of-00002.safetensors", "consolidated.safetensors.index.json", "tekken.json"]
FIRST_OF_BOTH = ["config.json", "model.safetensors", "model.safetensors.index.json"]


@pytest.mark.effect("model.config_format")
def test_of_two_formats_only_the_weights_of_one_are_downloaded(fetched: Fetched) -> None:
    """Once both copies of the weights of Mistral's repositories were."""

    def of(*words: str) -> list[str]:
        _, files, _ = fetched(Hub(**{f"a__{len(words)}": [*FIRST_OF_BOTH, *OWN]}), "--model", f"a/{len(words)}", *words)
        return [file for file in files if file.endswith(".safetensors")]

    assert of() == ["model.safetensors"]
    assert of("--config-format", "mistral") == ["consolidated-00001-of-00002.safetensors"]
    assert of("--config-format", "auto", "--load-format", "mistral") == ["consolidated-00001-of-00002.safetensors"]


def test_a_repository_with_params_json_alone_is_downloaded(fetched: Fetched) -> None:
    _, files, hub = fetched(Hub(a__own=OWN), "--model", "a/own")
    assert files == sorted(OWN)
    num_asked = len(hub.asked)
    fetched(hub, "--model", "a/own")
    assert len(hub.asked) == num_asked


def test_a_download_that_was_cut_before_config_json_goes_on(fetched: Fetched, tmp_path: Path) -> None:
    """params.json alone would make it a repository of the other format."""
    hub = Hub(a__cut=["params.json"])
    fetched(hub, "--model", "a/cut", "--load-format", "dummy")
    hub.repositories["a/cut"] = [*FIRST_OF_BOTH, *OWN]
    assert "model.safetensors" in fetched(hub, "--model", "a/cut")[1]


@pytest.mark.effect("model.revision", "model.tokenizer_revision")
def test_model_and_tokenizer_have_revisions_of_their_own(fetched: Fetched) -> None:
    folder, _, hub = fetched(Hub(a__model=BOTH), "--model", "a/model", "--revision", "v1", "--tokenizer-revision", "v2")
    assert folder.name == "at-v1"
    assert [asked[1] for asked in hub.asked] == ["v1", "v2"]
    words = ["--model", "a/model", "--revision", "v1", "--tokenizer", "a/words", "--tokenizer-revision", "v3"]
    hub = fetched(Hub(a__words=["tokenizer.json"]), *words)[2]
    assert [asked[:2] for asked in hub.asked] == [("a/words", "v3")]


@pytest.mark.effect("model.hf_config_path", "model.tokenizer")
def test_config_json_and_tokenizer_may_come_from_other_repositories(fetched: Fetched) -> None:
    hub = Hub(a__weights=["model.safetensors"], a__shape=BOTH, a__words=["tokenizer.json", "config.json"])
    words = ["--model", "a/weights", "--hf-config-path", "a/shape", "--tokenizer", "a/words"]
    _, files, hub = fetched(hub, *words)
    assert files == ["model.safetensors"]
    assert [asked[0] for asked in hub.asked] == ["a/weights", "a/shape", "a/words"]


@pytest.mark.effect("model.hf_token")
@pytest.mark.parametrize(
    ("words", "token"), [([], None), (["--hf-token", "hf_x"], "hf_x"), (["--hf-token", "true"], True)]
)
def test_the_hub_is_shown_the_token_or_that_of_its_login(
    fetched: Fetched, words: list[str], token: str | bool | None
) -> None:
    assert fetched(Hub(a__model=BOTH), "--model", "a/model", *words)[2].asked == [("a/model", None, token)]


GGUFS = [
    *("a-Q4_K_M-00001-of-00002.gguf", "a-Q4_K_M-00002-of-00002.gguf", "a-Q8_0.gguf", "mmproj-Q8_0.gguf"),
    *("README.md", "config.json"),
]


@pytest.mark.effect("model.model")
def test_of_a_repository_with_gguf_files_only_the_named_quantisation_is_downloaded(fetched: Fetched) -> None:
    hub = Hub(a__gguf=GGUFS)
    folder, files, _ = fetched(hub, "--model", "a/gguf:q4_k_m")
    assert files == GGUFS[:2]
    assert hub.asked == [("a/gguf", None, None)]
    (folder / GGUFS[1]).unlink()
    assert fetched(hub, "--model", "a/gguf:Q4_K_M")[1] == GGUFS[:2]  # a download that was cut goes on
    assert fetched(hub, "--model", "a/gguf:Q4_K_M")[1] == GGUFS[:2]
    assert len(hub.asked) == 2
    assert "a-Q8_0.gguf" in fetched(hub, "--model", "a/gguf:Q8_0")[1]
    with pytest.raises(ModelFilesError, match="a/gguf: the repository has no GGUF file of Q2_K"):
        fetched(hub, "--model", "a/gguf:Q2_K")


def test_adapters_of_the_hub_are_downloaded_with_the_two_files_that_are_read(fetched: Fetched, tmp_path: Path) -> None:
    files = ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin", "tokenizer.json"]
    words = ["--model", "a/model", "--lora-modules", "sql=a/sql", "here=./nowhere"]
    hub = Hub(a__model=BOTH, a__sql=files)
    fetched(hub, *words, "--enable-lora")
    assert [name for name, *_ in hub.asked] == ["a/model", "a/sql"]
    found = {path.name for path in (tmp_path / "models--a--sql").rglob("*.*") if path.is_file()}
    assert found == {"adapter_config.json", "adapter_model.safetensors"}
    other = Hub(a__model=BOTH)
    fetched(other, *words)
    assert other.asked == []
