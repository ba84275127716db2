from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli.migrate import run

OLD = "model:\n  model: builtin:tiny\n  task: generate  # the job\n"
DIFF = """\
--- deploy.yaml
+++ deploy.yaml
@@ -1,3 +1,3 @@
 model:
   model: builtin:tiny
-  task: generate  # the job
+  runner: generate  # the job
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deploy.yaml").write_text(OLD)


def test_a_diff_is_shown_and_nothing_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("deploy.yaml") == 0
    answer, talk = capsys.readouterr()
    assert answer == DIFF
    assert "model.task -> model.runner" in talk
    assert "--write" in talk
    assert Path("deploy.yaml").read_text() == OLD


def test_the_file_is_written_whole_and_keeps_its_rights(capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").chmod(0o640)
    assert run("deploy.yaml", write=True) == 0
    assert Path("deploy.yaml").read_text() == OLD.replace("task", "runner")
    assert Path("deploy.yaml").stat().st_mode & 0o777 == 0o640
    assert [path.name for path in Path().iterdir()] == ["deploy.yaml"]
    capsys.readouterr()
    assert run("deploy.yaml", write=True) == 0
    assert capsys.readouterr() == ("", "deploy.yaml: nothing to migrate\n")


def test_what_is_left_to_do_by_hand_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text("scheduler: {preemption_mode: swap}\n")
    assert run("deploy.yaml", write=True) == 1
    assert "swapping is not supported" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "code"),
    [("nowhere.yaml", None, 78), ("bad.yaml", b"model: [", 78), ("latin.yaml", b"a: \xe9", 78), ("-", None, 2)],
)
def test_what_cannot_be_read_says_why(
    file: str, content: bytes | None, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path(file).write_bytes(content)
    assert run(file) == code
    assert capsys.readouterr().err.startswith("error")
