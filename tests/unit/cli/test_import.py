from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.cli.app import main


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["import", *words])
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ["vllm serve Qwen/Qwen3-0.6B --max-model-len 32k"],
        ["--", "vllm", "serve", "Qwen/Qwen3-0.6B", "--max-model-len", "32k"],
        ["vllm", "serve", "Qwen/Qwen3-0.6B", "--max-model-len", "32k"],
        ["start.sh"],
        ["flat.yaml"],
    ],
)
def test_a_launch_command_may_be_a_text_words_a_script_or_a_file(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    Path("start.sh").write_text("#!/bin/sh\nexec vllm serve Qwen/Qwen3-0.6B \\\n  --max-model-len 32k\n")
    Path("flat.yaml").write_text("model: Qwen/Qwen3-0.6B\nmax-model-len: 32k\n")
    code, out, err = run(capsys, *words)
    assert code == 0
    assert "\nmodel:\n  model: Qwen/Qwen3-0.6B\n  max_model_len: 32k\n" in out
    assert err == "2 options, 0 without a counterpart, 0 not needed\n"


def test_the_output_is_a_valid_deployment(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "vllm serve Qwen/Qwen3-0.6B --max-model-len 32k --new-flag 3 --swap-space 4")
    Path("deploy.yaml").write_text(out)
    with pytest.raises(SystemExit) as caught:
        main(["validate", "deploy.yaml", "--deny-warnings"])
    assert not caught.value.code


def test_strict_fails_if_an_option_has_no_counterpart(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--strict", "vllm serve x --new-flag 3")[0] == 1
    assert run(capsys, "vllm serve x --swap-space 4", "--strict")[0] == 0


def test_json_contains_everything(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "-o", "json", "vllm serve x --api-key sk-1 --max-num-seq 3")
    answer = json.loads(out)
    assert code == 0
    assert answer["format_version"] == 1
    assert answer["engine"] == "vllm"
    assert answer["deployment"]["model"] == {"model": "x"}
    assert answer["deployment"]["server"] == {"api_key": {"env": "API_KEY"}}
    assert answer["variables"] == ["API_KEY"]
    assert [(left["written"], left["kind"], left["suggestions"]) for left in answer["left"]] == [
        ("--max-num-seq 3", "unknown", ["--max-num-seqs"])
    ]
    assert "sk-1" not in out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "nothing to import"),
        (["nowhere.yaml"], 2, "cannot read `nowhere.yaml`"),
        (["ls -l"], 2, "nothing here starts a server"),
        (["vllm serve 'x"], 2, "is not closed"),
        (["vllm serve x", "-o", "xml"], 2, "'xml' is not one of 'yaml', 'json'"),
        (
            ["vllm serve x", "--from", "tensorrt"],
            2,
            "'tensorrt' is not one of 'vllm', 'sglang', 'llama.cpp', 'tgi', 'tei', 'infinity', 'ollama', 'stoker'",
        ),
        (["vllm serve x", "--from"], 2, "--from"),
    ],
)
def test_a_wrong_command_line_is_an_error_message(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    got, out, err = run(capsys, *words)
    assert (got, out) == (code, "")
    assert said in err


def test_the_option_config_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "--config"])
    out = capsys.readouterr().out
    assert "A flat file of long option names" in out
    assert "ENGINE__CONFIG" in out


@pytest.mark.parametrize("verb", [["validate"], ["config", "--minimal"]])
def test_verbs_take_a_flat_file(capsys: pytest.CaptureFixture[str], verb: list[str]) -> None:
    Path("flat.yaml").write_text("model: Qwen/none\nmax-num-seqs: 7\n")
    with pytest.raises(SystemExit) as caught:
        main([*verb, "--config", "flat.yaml"])
    assert not caught.value.code
    assert ("valid" if verb == ["validate"] else "max_num_seqs: 7") in capsys.readouterr().out
