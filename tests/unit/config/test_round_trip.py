"""Whatever Stoker writes as a manifest means the same when it is read again, with no new finding.

`make test` generates a few hundred manifests, the same every time; `pytest -m slow` eight times as many.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from stoker.config import ConfigError, Deployment, load_deployment
from stoker.config.digest import digest
from stoker.config.effective import as_manifest, as_tree, effective_values, minimal, whole
from stoker.config.examine import Report, report_on
from stoker.config.importer import llama_cpp, sglang
from stoker.config.importer.draft import Draft
from stoker.config.importer.manifest import manifest_text
from stoker.config.importer.read import import_script
from stoker.config.migrate import migrate
from stoker.config.presets import preset_names
from stoker.config.resolve.model_files import read_model_files
from stoker.config.resolve.resolve import resolve_deployment
from stoker.config.schema.options import options
from stoker.config.starter import starter

from . import generated
from .deployments import MACHINE
from .model_files import write_model

FEW = settings(max_examples=6, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=50)
each_amount = pytest.mark.parametrize(
    "amount",
    [
        pytest.param(FEW, id="few"),
        pytest.param(MANY, id="many", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
ENV = dict(generated.ENV)
SECRETS = dict.fromkeys(("HF_TOKEN", "API_KEY", *(f"API_KEY_{index}" for index in range(2, 9))), "sk")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("manifests")
    ENV["MODEL"] = str(write_model(folder / "model"))
    return folder


def run(amount: settings, check: Callable[..., None], folder: Path, *inputs: st.SearchStrategy[Any]) -> None:
    """Call `check(folder, ...)` with generated inputs."""

    @amount
    @given(st.tuples(*inputs))
    def each(values: tuple[Any, ...]) -> None:
        check(folder, *values)

    each()


def read(file: Path, env: dict[str, str] = ENV) -> Report:
    return report_on([file], [], MACHINE, env)


def meaning(report: Report) -> dict[str, Any]:
    """All that the engine is started with, except origins; all that is decided where the model is not here."""
    deployment = report.deployment
    assert deployment is not None
    if report.model_missing is not None:
        assert report.decisions is not None
        return as_tree(whole(effective_values(deployment, report.decisions)))
    record = resolve_deployment(deployment, read_model_files(deployment), MACHINE)
    record = record.model_copy(
        update={
            "model": record.model.model_copy(
                update={"model": deployment.located("model.model"), "served_model_name": record.served_model_names}
            )
        }
    )
    places = {"origins", "overridden", "digest", "warnings", "secret_variables"}  # the last: also of overridden values
    exclude = {**dict.fromkeys(places, True), "memory": {"kv_sized_by"}}  # whether its size is written
    return record.model_dump(exclude=exclude, context={"reveal_secrets": True})


def references(report: Report) -> dict[str, Any]:
    """Where each secret in use is read from."""
    assert report.deployment is not None
    return {path: reference for path, reference in report.deployment.references.items() if reference}


def manifest(report: Report, is_minimal: bool = False) -> str:
    assert report.deployment is not None
    assert report.decisions is not None
    values = effective_values(report.deployment, report.decisions)
    return as_manifest(minimal(values, report.deployment) if is_minimal else whole(values)) + "\n"


def written(folder: Path, files: dict[str, str]) -> Report:
    for name, text in files.items():
        (folder / name).write_text(text)
    report = read(folder / "deploy.yaml")
    assume(not report.errors)
    return report


def said(report: Report) -> set[tuple[str, str]]:
    return {(finding.code, finding.path or "") for finding in report.findings}


def check_again(folder: Path, report: Report, text: str) -> Report:
    """Read `text` from another folder: the same meaning and no new finding."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "again.yaml").write_text(text)
    again = read(elsewhere / "again.yaml")
    assert said(again) <= said(report)
    assert meaning(again) == meaning(report)
    assert references(again) == references(report)
    return again


def check_config(folder: Path, files: dict[str, str]) -> None:
    report = written(folder, files)
    text = manifest(report)
    again = check_again(folder, report, text)
    assert manifest(again) == text


def check_config_minimal(folder: Path, files: dict[str, str]) -> None:
    report = written(folder, files)
    again = check_again(folder, report, manifest(report, is_minimal=True))
    assert report.deployment is not None
    assert again.deployment is not None
    if not relative_paths(report.deployment):
        assert digest(again.deployment) == digest(report.deployment)


def relative_paths(deployment: Deployment) -> list[str]:
    """Options that name files relative to the manifest: the absolute path is written."""
    kinds = {path: option.path_kind for path, option in options().items() if option.section and option.path_kind}
    written = {path: getattr(getattr(deployment.config, path.split(".")[0]), path.split(".")[1]) for path in kinds}
    return [path for path, value in written.items() if value is not None and value != deployment.located(path)]


def check_import_of_own_flags(folder: Path, words: list[str]) -> None:
    """vLLM has options of the same names, so the flags themselves say what the imported manifest must mean."""
    try:
        direct = load_deployment([], [f"--model={ENV['MODEL']}", *words], ENV)
    except ConfigError:
        assume(False)
    assume(not direct.config.model.trust_remote_code)  # left to the user
    text = manifest_text(import_script(shlex.join(["vllm", "serve", ENV["MODEL"], *words])))
    (folder / "imported.yaml").write_text(text)
    again = load_deployment([folder / "imported.yaml"], [], ENV)
    assert values_of(again) == values_of(direct)
    assert {finding.code for finding in again.warnings} <= {finding.code for finding in direct.warnings}


def check_import_of_foreign_flags(folder: Path, start: list[str], words: list[str]) -> None:
    """Everything that can be read is in the manifest, and all of that is accepted."""
    draft = import_script(shlex.join([*start, *words]))
    (folder / "imported.yaml").write_text(manifest_text(draft))
    deployment = load_deployment([folder / "imported.yaml"], [f"--model={ENV['MODEL']}"], ENV | SECRETS)
    assert {*draft.values, *draft.secrets} <= {*deployment.origins, *unset(draft)}
    assert deployment.warnings == ()


def unset(draft: Draft) -> set[str]:
    return {path for path, node in draft.values.items() if node.is_null} | {"model.model"}


def check_init(folder: Path, model: str, preset: str | None, taken: int) -> None:
    """Options whose `#` is removed have their defaults."""
    text = starter(model, preset, is_full=True)
    lines = text.splitlines()
    commented = [index for index, line in enumerate(lines) if re.match(r" +#[a-z]", line)]
    for bit, index in enumerate(commented):
        if taken >> bit & 1:
            lines[index] = lines[index].replace("#", "", 1)
    for name, content in (("init.yaml", text), ("taken.yaml", "\n".join(lines))):
        (folder / name).write_text(content)
    plain, changed = (load_deployment([folder / name], [], ENV) for name in ("init.yaml", "taken.yaml"))
    assert plain.warnings == changed.warnings == ()
    assert plain.model.model == model
    if preset is None:
        assert values_of(changed) == values_of(plain)


def check_migrate(folder: Path, text: str) -> None:
    (folder / "old.yaml").write_text(text)
    try:
        old = load_deployment([folder / "old.yaml"], [], ENV)
    except ConfigError:
        assume(False)
    done = migrate(text, "old.yaml", ENV)
    (folder / "new.yaml").write_text(done.text)
    new = load_deployment([folder / "new.yaml"], [], ENV)
    assert values_of(new) == values_of(old)
    assert len(new.warnings) == len(done.left), done.text


def values_of(deployment: Deployment) -> dict[str, Any]:
    return deployment.config.model_dump(context={"reveal_secrets": True}, exclude={"preset"})


@each_amount
def test_the_output_of_config_means_the_same(folder: Path, amount: settings) -> None:
    run(amount, check_config, folder, generated.manifests())


@pytest.mark.parametrize(
    "cache",
    [
        "gpu_memory_utilization: null\n  kv_cache_memory_bytes: 64MiB",  # a null that unsets a preset's value
        "gpu_memory_utilization: 0.9\n  kv_cache_memory_bytes: 64MiB",  # the default, where the preset has another
    ],
)
def test_a_default_written_over_a_preset_is_no_finding(folder: Path, cache: str) -> None:
    (folder / "deploy.yaml").write_text(f"preset: cpu-laptop\nmodel:\n  model: ./model\ncache:\n  {cache}\n")
    report = read(folder / "deploy.yaml")
    assert report.findings == ()
    check_again(folder, report, manifest(report))


def test_without_an_engine_its_options_are_not_written(folder: Path) -> None:
    (folder / "deploy.yaml").write_text("server:\n  engine: none\nmodel:\n  model: ./model\n")
    report = read(folder / "deploy.yaml")
    check_again(folder, report, manifest(report))


def test_the_size_that_one_replica_of_many_gets_is_no_finding(folder: Path) -> None:
    text = "cache:\n  gpu_memory_utilization: 0.8\nparallel:\n  data_parallel_size: 41\nmodel:\n  model: ./model\n"
    (folder / "deploy.yaml").write_text(text)
    report = read(folder / "deploy.yaml")
    check_again(folder, report, manifest(report))


@each_amount
def test_the_output_of_config_minimal_means_the_same_and_has_the_same_hash(folder: Path, amount: settings) -> None:
    run(amount, check_config_minimal, folder, generated.manifests())


@each_amount
def test_an_imported_command_line_means_what_its_flags_mean(folder: Path, amount: settings) -> None:
    run(amount, check_import_of_own_flags, folder, generated.flags())


@each_amount
def test_a_command_line_of_sglang_becomes_a_manifest_that_is_accepted(folder: Path, amount: settings) -> None:
    start = st.just(["python", "-m", "sglang.launch_server"])
    run(amount, check_import_of_foreign_flags, folder, start, generated.foreign_flags(sglang.TABLE))


@each_amount
def test_a_command_line_of_llama_cpp_becomes_a_manifest_that_is_accepted(folder: Path, amount: settings) -> None:
    run(
        amount,
        check_import_of_foreign_flags,
        folder,
        st.just(["llama-server"]),
        generated.foreign_flags(llama_cpp.TABLE),
    )


@each_amount
def test_the_output_of_init_full_is_accepted_with_any_options_taken(folder: Path, amount: settings) -> None:
    presets = st.none() | st.sampled_from(preset_names())
    run(amount, check_init, folder, generated.texts, presets, st.integers(0, 2**200))


@each_amount
def test_a_migrated_manifest_means_the_same(folder: Path, amount: settings) -> None:
    run(amount, check_migrate, folder, generated.old_manifests())
