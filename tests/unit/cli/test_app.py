from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stoker.cli.app import main
from stoker.cli.prepare import failing
from stoker.installation import install_command

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


@pytest.mark.parametrize("verb", ["validate", "plan"])
def test_a_folder_without_a_deployment_has_nothing_to_check(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, verb)
    assert (code, out) == (2, "")
    assert f"nothing to {verb}" in err


def test_the_deployment_of_the_current_folder_needs_no_name(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "validate")[1] == run(capsys, "validate", "deploy.yaml")[1]
    assert run(capsys, "config", "--max-num-seqs", "7", "scheduler.max_num_seqs")[:2] == (0, "7\n")


def test_a_command_line_without_a_verb_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """It said `error: Usage: engine [OPTIONS] ...`."""
    assert run(capsys) == run(capsys, "--help")


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


def test_a_closed_pipe_is_not_an_error_of_work_that_can_fail(capsys: pytest.CaptureFixture[str]) -> None:
    """`engine bench serve | head -1` ended with `error: [Errno 32] Broken pipe`."""

    def work() -> int:
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        failing(work)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_the_base_installation_plans_and_tests_tools() -> None:
    """`engine plan` needed msgpack, which only the extra `engine` brought."""
    extra = [Requirement(each) for each in requires("stoker") or () if "engine" in each.partition(";")[2]]
    names = {canonicalize_name(each.name) for each in extra}
    modules = [
        module for module, owners in packages_distributions().items() if names & {*map(canonicalize_name, owners)}
    ]
    assert {"torch", "numpy", "zmq", "starlette"} <= {*modules}
    block = f"import sys\nsys.modules |= dict.fromkeys({modules})\n"
    for words in (["plan", "--model", "builtin:tiny"], ["test", "tools", "--model", "builtin:tiny"]):
        result = engine("-c", f"{block}from stoker.cli.app import main\nmain({words})")
        assert result.returncode == 0, result.stderr
        assert "`<tool_call>` in the template" in result.stdout
    assert engine("-c", f"{block}import stoker.text.template_jobs").returncode == 0  # renders the template


@pytest.mark.slow
def test_a_verb_that_needs_more_than_the_base_install_says_what_to_install() -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\nsys.modules['zmq'] = None\n"
        "from stoker.cli.app import main\nmain(['up', '--model', 'builtin:tiny'])"
    )
    result = engine("-c", code)
    assert result.returncode == 4
    assert f"not installed\n  = fix: {install_command('engine')}" in result.stderr
    assert "Traceback" not in result.stderr
