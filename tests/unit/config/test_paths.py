"""Options that name files: every content is reported as a finding, never as a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli.app import main
from stoker.config.schema.options import options

from .model_files import write_model

PATHS = [option for option in options().values() if option.path_kind and option.status == "effective"]
ODD = {
    "long": "x" * 5000,
    "nul": '"a\\0b"',
    "a folder": "./folder",
    "a loop": "./loop",
    "nothing": "./nothing",
    "null device": "/dev/null",
}
ODD |= {
    "long below": f"./{'x/' * 3000}",
    "no text": "./bytes",
    "home": "~no-such-user/x",
    "root": "/",
    "dots": "../../../..",
    "empty": '""',
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(Path("m"))
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    Path("bytes").write_bytes(bytes(range(256)))


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("option", PATHS, ids=lambda option: option.path)
@pytest.mark.quick_cases(10, name=["nul", "a folder", "empty"])
def test_odd_names_of_files_are_reported(option: object, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert hasattr(option, "section")
    model = "" if option.path == "model.model" else "model:\n  model: ./m\n"
    head = f"{option.section}:\n" if option.section else ""
    if option.section == "model":
        head, model = model or head, ""
    Path("deploy.yaml").write_text(f"{model}{head}{'  ' * bool(option.section)}{option.name}: {ODD[name]}\n")
    for verb in (["validate", "deploy.yaml"], ["plan", "deploy.yaml"], ["diff", "deploy.yaml", "--port", "81"]):
        with pytest.raises(SystemExit) as ended:
            main(verb)
        assert ended.value.code in (0, 1, 2, 3, 4, 78)
    with pytest.raises(SystemExit) as ended:
        main(["render", "k8s", "deploy.yaml"])
    assert ended.value.code in (0, 3, 78)
    out, err = capfd.readouterr()
    assert out + err


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "d\udcff.yaml", "/", "", "~no-such-user/x"])
@pytest.mark.parametrize("verb", ["validate", "config", "plan", "diff", "migrate", "render k8s", "import", "init"])
def test_odd_names_of_deployments_are_reported(verb: str, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    other = ["--port", "81"] if verb == "diff" else []
    with pytest.raises(SystemExit) as ended:
        main([*verb.split(), name, *other])
    assert ended.value.code in (1, 2, 78) or (verb, name) == ("init", "d\udcff.yaml")
    said = "".join(capfd.readouterr())
    assert "error" in said or not ended.value.code
    assert len(said) < 15_000
