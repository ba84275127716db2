from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

from stoker.config import ConfigError, load_deployment

from ..deployments import findings, load, message


def test_files_are_merged_key_by_key_and_later_ones_win(tmp_path: Path) -> None:
    for name, text in {
        "base.yaml": "model: {model: a, seed: 1}\nserver: {port: 1, api_key: [x, y]}\n",
        "child.yaml": "extends: base.yaml\nmodel: {model: b}\nserver: {api_key: [z]}\n",
        "over.yaml": "server: {port: 2}\n",
    }.items():
        (tmp_path / name).write_text(text)
    deployment = load_deployment([tmp_path / "child.yaml", tmp_path / "over.yaml"], env={})
    assert (deployment.model.model, deployment.model.seed, deployment.server.port) == ("b", 1, 2)
    assert [key.get_secret_value() for key in deployment.server.api_key] == ["z"]
    assert [Path(text.name).name for text in deployment.sources] == ["base.yaml", "child.yaml", "over.yaml"]


def test_names_in_extends_are_relative_to_the_file_that_wrote_them(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "base.yaml").write_text("model: {model: a}")
    (tmp_path / "sub" / "middle.yaml").write_text("extends: ../base.yaml")
    assert load(tmp_path, "extends: [sub/middle.yaml]").model.model == "a"


def test_a_circle_of_files_is_reported_with_its_places(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("extends: deploy.yaml\nmodel: {model: a}\n")
    said = message(tmp_path, "extends: other.yaml\n")
    assert "error[C114]" in said
    assert "other.yaml:1:10" in said
    assert "deploy.yaml:1:10" in said


def test_a_missing_parent_points_at_its_name(tmp_path: Path) -> None:
    said = message(tmp_path, "model: {model: a}\nextends: [nowhere.yaml]\n")
    assert "error[C101]: cannot read `nowhere.yaml`: no such file or directory" in said
    assert "deploy.yaml:2:11" in said


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"\xff\xfe", "C108"), (b"a: \xe9", "C108"), (b"x" * (5 << 20), "C109"), (b"- a\n", "C119"), (b"text", "C119")],
)
def test_a_file_that_is_not_a_manifest_is_one_finding(tmp_path: Path, content: bytes, code: str) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_deployment([file], ["--model", "x"], {})
    assert [finding.code for finding in caught.value.diagnostics] == [code]
    assert caught.value.exit_code == 78


@pytest.mark.parametrize("name", ["nowhere.yaml", ".", "a\0b"])
def test_a_name_that_is_not_a_file_is_one_finding(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_deployment([tmp_path / name], ["--model", "x"], {})
    assert [finding.code for finding in caught.value.diagnostics] == ["C101"]


def test_a_file_without_rights_is_one_finding(tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text("model: {model: x}")
    file.chmod(0)
    if os.access(file, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(ConfigError, match="permission denied"):
        load_deployment([file], env={})


def test_a_large_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "large.yaml").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(ConfigError) as caught:
        load_deployment([tmp_path / "large.yaml"], ["--model", "x"], {})
    assert caught.value.diagnostics[0].code == "C109"


@pytest.mark.timeout(30)
def test_a_pipe_is_read_where_the_shell_makes_one_and_refused_where_a_file_names_it(tmp_path: Path) -> None:
    """`extends:` of a named pipe once waited without end."""
    (tmp_path / "deploy.yaml").write_text("extends: pipe\nmodel: {model: x}\n")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="a named pipe, not a regular file") as caught:
        load_deployment([tmp_path / "deploy.yaml"], env={})
    assert [finding.code for finding in caught.value.diagnostics] == ["C101"]
    reads, writes = os.pipe()
    os.write(writes, b"model: {model: piped}")
    os.close(writes)
    assert load_deployment([f"/dev/fd/{reads}"], env={}).model.model == "piped"
    os.close(reads)


def test_standard_input_is_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b"model: {model: x}\nserver: {prot: 1}\n")

    monkeypatch.setattr("sys.stdin", Stdin())
    with pytest.raises(ConfigError, match="<stdin>:2:10"):
        load_deployment(["-"], env={})


def test_values_are_typed_after_filling_in(tmp_path: Path) -> None:
    text = "model:\n  model: x\n  revision: ${REV}\nserver:\n  port: ${PORT}\n  enable_log_requests: ${LOG:-true}\n"
    deployment = load(tmp_path, text, env={"PORT": "81", "REV": "0123"})
    assert (deployment.server.port, deployment.server.enable_log_requests) == (81, True)
    assert deployment.model.revision == "0123"


def test_quotes_keep_a_filled_in_text_a_text(tmp_path: Path) -> None:
    overrides: dict[str, Any] = load(
        tmp_path, 'model:\n  model: x\n  hf_overrides:\n    a: "${N}"\n    b: ${N}\n', env={"N": "7"}
    ).model.hf_overrides
    assert overrides == {"a": "7", "b": 7}


def test_an_unset_variable_in_an_overridden_value_does_no_harm(tmp_path: Path) -> None:
    text = "model: {model: x}\nserver:\n  port: ${NOWHERE}\n"
    assert findings(tmp_path, text) == ["C111"]
    assert load(tmp_path, text, "--port", "82").server.port == 82


def test_an_empty_section_says_nothing_and_a_written_null_unsets_it(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("model: {model: x}\nserver: {port: 81}\n")
    assert load(tmp_path, "extends: base.yaml\nserver:\n  # port: 82\n").server.port == 81
    assert load(tmp_path, "extends: base.yaml\nserver: null\n").server.port == 8000


def test_null_unsets_what_weaker_layers_say(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("model: {model: x, max_model_len: 4k}\nserver: {port: 81}\n")
    deployment = load(tmp_path, "extends: base.yaml\nmodel: {max_model_len: null}\nserver: {port: ~}\n")
    assert (deployment.model.max_model_len, deployment.server.port) == ("auto", 8000)
    assert str(deployment.origin("server.port")) == "default"


def test_free_keys_hold_anchors(tmp_path: Path) -> None:
    text = "x-limits: &limits {max_num_seqs: 3}\nmodel: {model: x}\nscheduler: {<<: *limits}\n"
    assert load(tmp_path, text).scheduler.max_num_seqs == 3


def test_a_form_between_braces_needs_quotes_and_the_message_says_so(tmp_path: Path) -> None:
    assert "in quotes" in message(tmp_path, "model: {model: ${MODEL}}\n")


def test_a_shared_value_is_filled_in_once(tmp_path: Path) -> None:
    """An alias shares its nodes, and `$$` filled in twice would be taken for a form."""
    text = "x-a: &a\n  k: $${HOME}\nmodel:\n  model: x\n  hf_overrides: {one: *a, two: *a}\n"
    assert load(tmp_path, text).model.hf_overrides == {"one": {"k": "${HOME}"}, "two": {"k": "${HOME}"}}
