from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from stoker.cli.flags.writing import InitFlags
from stoker.cli.init import run
from stoker.config import load_deployment
from stoker.config.schema.deployment import DeploymentConfig
from stoker.config.schema.options import options


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_first_file_is_a_dozen_lines_that_load() -> None:
    assert run(InitFlags("deploy.yaml")) == 0
    text = Path("deploy.yaml").read_text()
    assert len(text.splitlines()) <= 14
    assert load_deployment(["deploy.yaml"], env={}).model.model == "builtin:tiny"


def test_editors_find_the_schema_beside_the_file_and_the_file_satisfies_it() -> None:
    assert run(InitFlags("sub.yaml", full=True)) == 0
    first = Path("sub.yaml").read_text().splitlines()[0]
    schema = json.loads(Path(first.partition("$schema=")[2]).read_text())
    jsonschema.validate(yaml.safe_load(Path("sub.yaml").read_text()), schema)


def test_a_full_file_holds_every_effective_option() -> None:
    run(InitFlags("deploy.yaml", full=True))
    named = re.findall(r"^ *#?(\w+):", Path("deploy.yaml").read_text(), re.MULTILINE)
    missing = [
        option.path for option in options().values() if option.status == "effective" and option.name not in named
    ]
    assert missing == ["extends", "config"]


def test_taking_away_the_hashes_changes_nothing() -> None:
    """What a full file shows as defaults are the defaults."""
    run(InitFlags("deploy.yaml", full=True))
    lines = Path("deploy.yaml").read_text().splitlines()
    bare = [re.sub(r"^( +)#(\w+:)", r"\1\2", line) for line in lines]
    assert bare != lines
    Path("bare.yaml").write_text("\n".join(bare))
    written = load_deployment(["bare.yaml"], env={}).config
    assert written == DeploymentConfig(model={"model": "builtin:tiny"})  # type: ignore[arg-type]


@pytest.mark.parametrize("is_full", [False, True])
def test_model_and_preset_are_written_down(is_full: bool) -> None:
    assert run(InitFlags("deploy.yaml", model="Qwen/Qwen3-0.6B", preset="latency", full=is_full)) == 0
    deployment = load_deployment(["deploy.yaml"], env={})
    assert (deployment.model.model, deployment.config.preset) == ("Qwen/Qwen3-0.6B", "latency")


def test_a_models_folder_is_named_as_seen_from_the_file() -> None:
    Path("weights").mkdir()
    Path("sub").mkdir()
    assert run(InitFlags("sub/deploy.yaml", model="weights")) == 0
    deployment = load_deployment(["sub/deploy.yaml"], env={})
    assert deployment.located("model.model") == str(Path("weights").resolve())


def test_nothing_is_written_over_without_force(capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text("mine")
    assert run(InitFlags("deploy.yaml")) == 1
    assert Path("deploy.yaml").read_text() == "mine"
    assert "--force" in capsys.readouterr().err
    assert run(InitFlags("deploy.yaml", force=True)) == 0
    assert Path("deploy.yaml").read_text() != "mine"


def test_a_schema_of_something_else_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("deployment.schema.json").write_text("{}")
    assert run(InitFlags("deploy.yaml")) == 0
    assert Path("deployment.schema.json").read_text() == "{}"
    assert "warning: deployment.schema.json is not a schema of deployments" in capsys.readouterr().err


def test_printed_it_touches_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(InitFlags("-")) == 0
    assert capsys.readouterr().out.startswith("# yaml-language-server: ")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"preset": "latenzy"}, 2),
        ({"full": True, "minimal": True}, 2),
        ({"file": "nowhere/deploy.yaml"}, 1),
        ({"file": "."}, 1),
    ],
)
def test_what_cannot_be_written_says_why(
    arguments: dict[str, object], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(InitFlags(**{"file": "deploy.yaml", **arguments})) == code  # type: ignore[arg-type]
    assert capsys.readouterr().err.startswith("error: ")
    assert list(Path().iterdir()) == []
