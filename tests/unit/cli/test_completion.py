"""Completion: what is offered for a word, through the table, the command and a real shell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cli import completion_table
from stoker.cli.app import commands, main, verbs_with_options
from stoker.cli.completion import SCRIPTS, Shell, run
from stoker.cli.completion_table import build_table, read_table
from stoker.cli.completion_words import candidates

ENGINE = str(Path(sys.executable).parent / "engine")


@pytest.fixture(scope="module")
def table() -> dict[str, object]:
    return json.loads(json.dumps(build_table(commands(), verbs_with_options())))


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("va", ["validate"]),
        ("up --cache.blo", ["--cache.block-size"]),
        ("up --max-num-s", ["--max-num-seqs"]),
        ("up --no-enable-prefix", ["--no-enable-prefix-caching"]),
        ("up --scheduling-policy ", ["fcfs", "priority"]),
        ("up --scheduling_policy ", ["fcfs", "priority"]),
        ("up --scheduler.scheduling-policy=p", ["--scheduler.scheduling-policy=priority"]),
        ("up --cach", ["--cache."]),
        ("up --preset la", ["latency"]),
        ("validate -o g", ["github"]),
        ("explain cache.block", ["cache.block_size"]),
        ("explain max_model", ["max_model_len"]),
        ("explain ", ["options", "rules", "codes", "device-profiles", "presets"]),
        ("plan --device-profile h2", ["h200"]),
        ("explain R20", ["R201"]),
        ("explain --max-num-s", ["--max-num-seqs"]),
        ("config deploy.yaml cache.blo", ["cache.block_size"]),
        ("config -f over.yaml deploy.yaml cache.blo", ["cache.block_size"]),
        ("render ", ["k8s", "kserve", "compose", "systemd"]),
        ("completion f", ["fish"]),
        ("init --preset th", ["throughput"]),
        ("import --from ", ["vllm", "sglang", "llama.cpp", "tgi", "tei", "infinity", "ollama", "stoker"]),
        ("explain -o ", ["text", "json", "md"]),
        ("bench --endpoint c", ["chat", "completions"]),
        ("bench st", ["startup"]),
        ("chat --port ", []),
        ("chat --max-num", []),
        ("nonsense --x", []),
    ],
)
def test_what_is_offered(line: str, offered: list[str], table: dict[str, object]) -> None:
    found, _ = candidates(line.split(" "), table)
    values = [value for value, _ in found]
    assert values[: len(offered)] == offered
    if not line.startswith("explain"):
        assert values == offered


@pytest.mark.parametrize(
    ("line", "directive"),
    [
        ("up ", ":files"),
        ("validate a.yaml b", ":files"),
        ("render k8s ", ":files"),
        ("up --model ", ":files"),
        ("up -f ", ":files"),
        ("up --cach", ":nospace"),
        ("up --port ", ""),
        ("config a.yaml ", ""),
    ],
)
def test_files_are_offered_where_files_belong(line: str, directive: str, table: dict[str, object]) -> None:
    assert candidates(line.split(" "), table)[1] == directive


def test_every_flag_of_an_effective_option_is_offered(table: dict[str, object]) -> None:
    from stoker.config.schema.options import options

    flags = table["flags"]
    assert isinstance(flags, dict)
    expected = {flag for option in options().values() if option.status == "effective" for flag in option.flags}
    assert set(flags) == expected


def test_the_table_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = read_table(commands, verbs_with_options)
    cache = tmp_path / "stoker" / "completion.json"
    kept = json.loads(cache.read_text())
    kept["topics"] = {"from the cache": ""}
    cache.write_text(json.dumps(kept))
    assert read_table(commands, verbs_with_options)["topics"] == {"from the cache": ""}
    cache.write_text(json.dumps({**kept, "state": ["another release"]}))
    assert read_table(commands, verbs_with_options) == built
    cache.write_text("no json")
    assert read_table(commands, verbs_with_options) == built


@pytest.mark.slow
def test_a_warm_answer_imports_nothing_slow(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from stoker.cli.app import main\n"
        "try: main(['__complete', 'up', '--port', ''])\n"
        "except SystemExit: pass\n"
        "slow = {'typer', 'pydantic', 'yaml', 'rich', 'torch', 'jsonschema'} & set(sys.modules)\n"
        "print(','.join(sorted(slow)) or 'none')\n"
    )
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    said = [
        subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert said[1] == "none\n"


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_for_each_shell_that_the_shell_can_read(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shell) == 0
    script = capsys.readouterr().out
    assert "__complete" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_another_shell_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "cmd"])
    assert ended.value.code == 2
    assert "'cmd' is not one of 'bash', 'zsh', 'fish'" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.slow
def test_bash_completes_real_lines(tmp_path: Path) -> None:
    (tmp_path / "deploy.yaml").write_text("")
    lines = ["engine va", "engine up --cache.blo", "engine up --scheduling-policy=pri", "engine up --model builtin:",
             "engine up dep", "engine up --scheduling-policy "]  # fmt: skip
    script = [
        f"PATH={Path(ENGINE).parent}:$PATH",
        "source <(engine completion bash)",
        "COMP_WORDBREAKS=$' \\t\\n\"\\'><=;|&(:'",
        'ask() { COMP_LINE="$1"; COMP_POINT=${#1}; _engine_completion; echo "${COMPREPLY[*]}"; }',
        *(f"ask '{line}'" for line in lines),
    ]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    result = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == [
        "validate", "--cache.block-size", "priority", "tiny", "deploy.yaml", "fcfs priority"
    ]  # fmt: skip


def test_every_folder_that_declares_flags_makes_the_table_old():
    cli = Path(completion_table.__file__).parent
    declaring = {path.parent for path in cli.rglob("*.py") if "typer.Option(" in path.read_text("utf-8")}
    known = {cli.parent / name for name in completion_table._MADE_FROM}
    assert cli / "flags" in declaring
    assert declaring <= known
