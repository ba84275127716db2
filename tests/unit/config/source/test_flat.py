"""--config: a flat file of option names as one layer."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.config import ConfigError, Deployment, load_deployment


@pytest.fixture
def flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("flat.yaml")


def load(flat: Path, text: str, *words: str, env: dict[str, str] | None = None) -> Deployment:
    flat.write_text(text)
    return load_deployment([], ["--config", str(flat), *words], env or {})


def failure(flat: Path, text: str, *words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(flat, text, *words)
    return str(caught.value)


@pytest.mark.effect("config")
def test_names_are_long_options_in_either_spelling(flat: Path) -> None:
    """R013."""
    deployment = load(
        flat,
        """
model: x
max-model-len: 32k
max_num_seqs: 7
cache.block-size: 32
no-enable-prefix-caching: true
enable-chunked-prefill: false
served-model-name: [a, b]
middleware: c.d
hf-overrides: {rope_theta: 1e6}
hf-overrides.nested.key: 1
override-generation-config: '{"temperature": 0.5}'
port: ${PORT:-9000}
revision: None
x-note: [anything]
""",
    )
    assert deployment.model.model == "x"
    assert (deployment.model.max_model_len, deployment.scheduler.max_num_seqs) == (32000, 7)
    assert (deployment.cache.block_size, deployment.cache.enable_prefix_caching) == (32, False)
    assert deployment.scheduler.enable_chunked_prefill is False
    assert deployment.model.served_model_name == ("a", "b")
    assert deployment.server.middleware == ("c.d",)
    assert deployment.model.hf_overrides == {"rope_theta": 1e6, "nested": {"key": 1}}
    assert deployment.model.override_generation_config == {"temperature": 0.5}
    assert (deployment.server.port, deployment.model.revision) == (9000, None)


def test_each_value_knows_its_line(flat: Path) -> None:
    deployment = load(flat, "model: x\nmax-num-seqs: 7\n")
    assert str(deployment.origin("scheduler.max_num_seqs")) == "flat.yaml:2:15"
    assert str(deployment.origin("config")) == "command line --config"


@pytest.mark.effect("config")
def test_it_lies_between_the_files_and_the_environment(flat: Path) -> None:
    """R014."""
    Path("deploy.yaml").write_text("model: {model: x}\nscheduler: {max_num_seqs: 1}\nserver: {port: 1}\n")
    flat.write_text("max-num-seqs: 2\nmax-logprobs: 2\nseed: 2\n")
    env = {"ENGINE__MODEL__MAX_LOGPROBS": "3", "ENGINE__MODEL__SEED": "3"}
    deployment = load_deployment(["deploy.yaml"], ["--config", "flat.yaml", "--seed", "4"], env)
    assert (deployment.server.port, deployment.scheduler.max_num_seqs) == (1, 2)
    assert (deployment.model.max_logprobs, deployment.model.seed) == (3, 4)


@pytest.mark.effect("config")
def test_a_manifest_and_a_variable_can_name_it_too(flat: Path, tmp_path: Path) -> None:
    """The name in a manifest is relative to the manifest."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "flat.yaml").write_text("port: 9001")
    (folder / "deploy.yaml").write_text("config: flat.yaml\nmodel: {model: x}")
    assert load_deployment([folder / "deploy.yaml"], [], {}).server.port == 9001
    env = {"ENGINE__CONFIG": str(folder / "flat.yaml")}
    assert load_deployment([], ["--model", "x"], env).server.port == 9001


def test_it_is_one_of_the_sources(flat: Path) -> None:
    assert [source.name for source in load(flat, "model: x").sources] == ["flat.yaml"]


def test_one_file_at_most(flat: Path) -> None:
    """R014."""
    said = failure(flat, "model: x", "--config", "other.yaml")
    assert "`--config` is given twice" in said
    assert "one file at most" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: x\nmax-model-length: 1", "flat.yaml:2:1"),
        ("model: x\nmax-model-length: 1", "did you mean `max-model-len`?"),
        ("--port: 1", "did you mean `port`?"),
        ("speculativ-config: {}", "did you mean `speculative-config`"),
        ("config: a.yaml", "a flat file cannot name another"),
        ("port+: 1", "no option is called `port+`"),
        ("port: 1\nserver.port: 2", "error[C106]"),
        ("max-num-seqs: 1\nmax_num_seqs: 2", "error[C106]"),
        ("port: http", "flat.yaml:1:7"),
        ("hf-overrides: '{'", "is not valid JSON"),
        ("model: {model: x}", "this file is a manifest"),
        ("apiVersion: stoker/v1", "this file is a manifest"),
        ("- a", "write option names with their values"),
        ("a: [", "error[C102]"),
        ("compilation-config: {levl: 1}", "no such key"),
        ("speculative-config: 3", "takes the keys of `speculative`"),
    ],
)
@pytest.mark.holds("R013")
def test_errors_are_reported_with_their_place(flat: Path, text: str, said: str) -> None:
    assert said in failure(flat, text)


def test_a_file_that_is_not_there_is_an_error(flat: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read `nowhere\.yaml`"):
        load_deployment([], ["--config", "nowhere.yaml"], {})


def test_deprecated_names_are_mapped(flat: Path) -> None:
    deployment = load(flat, "model: x\ndisable-log-requests: false\nswap-space: 4\n")
    assert deployment.server.enable_log_requests is True
    assert [finding.code for finding in deployment.warnings] == ["C123", "C123"]


def test_secrets_are_secrets(flat: Path) -> None:
    said = failure(flat, "api-key: sk-123\nport: x\n")
    assert "sk-123" not in said
    assert "sk-123" not in failure(flat, "api-kye: sk-123")
    assert "sk-123" not in failure(flat, "api-key: sk-123\na: [")
    deployment = load(flat, "model: x\napi-key: {env: KEY}", env={"KEY": "k"})
    assert deployment.server.api_key[0].get_secret_value() == "k"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("compilation-config: 0", "compilation.level"),
        ("compilation-config: {level: 0}", "compilation.level"),
        ("limit-mm-per-prompt: image=16", "multimodal.limit_mm_per_prompt"),
        ("collect-detailed-traces: model,worker", "observability.collect_detailed_traces"),
    ],
)
def test_values_may_be_written_as_on_a_command_line(flat: Path, text: str, path: str) -> None:
    """Read or refused as a whole, never as a broken value."""
    try:
        reported = {("C118", option) for option in load(flat, f"model: x\n{text}").origins if option == path}
    except ConfigError as error:
        reported = {(finding.code, finding.path) for finding in error.diagnostics}
    assert reported == {("C118", path)}
