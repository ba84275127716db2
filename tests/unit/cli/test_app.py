from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cli.app import main

ROOT = Path(__file__).parents[3]
TINY = "model:\n  model: Qwen/none\n"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A valid deployment in the working directory, without variables of this program in the environment."""
    for name in [name for name in os.environ if name.startswith("ENGINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy.yaml").write_text(TINY)
    return tmp_path / "deploy.yaml"


def test_help_lists_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--help")
    assert code == 0
    assert not err
    for verb in ("up", "serve", "validate", "config", "explain", "schema", "chat", "complete"):
        assert re.search(rf"^  {verb} ", out, re.MULTILINE), verb


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["vlidate"], "no such command `vlidate`; did you mean `validate`?"),
        (["validate", "--otput", "json", "x.yaml"], "no such option `--otput`"),
        (["schema", "--chekc"], "--chekc"),
        (["schema", "x"], "unexpected extra argument"),
        (["up", "--max-num-seq", "3"], "did you mean `--max-num-seqs`?"),
        (["config", "deploy.yaml", "cache.blok_size"], "did you mean `cache.block_size`?"),
        (["config", "deploy.yaml", "-o", "xml"], "'xml' is not one of 'yaml', 'json'"),
        (["validate"], "nothing to validate"),
        (["validate", "deploy.yaml", "-o", "xml"], "'xml' is not one of 'text', 'json', 'github', 'sarif'"),
        (["explain", "port", "-o", "xml"], "'xml' is not one of 'text', 'json', 'md'"),
        (["schema", "--check", "--write"], "contradict each other"),
        (["config", "deploy.yaml", "--port"], "`--port` needs a value"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_a_plain_message(
    words: list[str], said: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.isascii(), "no boxes outside of a terminal"


def test_the_value_of_a_flag_is_not_read_as_a_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Click's ignore_unknown_options bound the value of an override to FILE."""
    code, out, _ = run(capsys, "config", "--max-num-seqs", "7", "deploy.yaml", "scheduler.max_num_seqs")
    assert (code, out) == (0, "7\n")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version")[:2] == (0, "stoker 0.1.0\n")


def test_help_of_a_verb_that_takes_options_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--max-num-seqs 64" in " ".join(run(capsys, "up", "--help")[1].replace("-\n", "-").split())


def engine(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ENGINE_", "COV_"))}
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**clean, "PYTHONPATH": str(ROOT / ".dev"), **env},
    )


def test_help_imports_neither_pydantic_nor_torch_nor_rich() -> None:
    """So that `engine --help` is quick; benchmarks measure its time."""
    code = (
        "import sys\nfrom stoker.cli.app import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('pydantic', 'torch', 'rich', 'yaml', 'transformers') if name in sys.modules])"
    )
    assert engine("-c", code).stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_validate_config_and_explain_import_no_torch(tmp_path: Path) -> None:
    (tmp_path / "deploy.yaml").write_text(TINY)
    code = (
        "import sys\nfrom stoker.cli.app import main\n"
        f"for words in (['validate', {str(tmp_path / 'deploy.yaml')!r}], ['explain', 'port'], ['schema'],"
        f" ['config', {str(tmp_path / 'deploy.yaml')!r}]):\n"
        "    try: main(words)\n    except SystemExit as end: assert not end.code\n"
        "print([name for name in ('torch', 'transformers', 'huggingface_hub') if name in sys.modules])"
    )
    result = engine("-c", code)
    assert result.stdout.splitlines()[-1] == "[]", result.stderr


def test_a_closed_pipe_is_not_an_error() -> None:
    result = engine("-c", f"import os; os.system('{sys.executable} -m stoker schema | head -1')")
    assert result.stdout == "{\n"
    assert not result.stderr


@pytest.mark.slow
def test_a_verb_that_needs_more_than_the_base_install_says_what_to_install() -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\nsys.modules['zmq'] = None\n"
        "from stoker.cli.app import main\nmain(['up', '--model', 'builtin:tiny'])"
    )
    result = engine("-c", code)
    assert result.returncode == 4
    assert "not installed\n  = fix: pip install 'stoker[engine]'" in result.stderr
    assert "Traceback" not in result.stderr
