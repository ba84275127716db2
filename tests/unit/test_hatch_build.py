"""The build hook, on sources small enough to compile in a moment."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("hatchling")
import hatch_build
from tests.unit.engine.kernels.cpu.tiny_library import SOURCES, needs_compiler

from stoker.config.cpu_features import LEVELS

ROOT = Path(__file__).parents[2]
NEEDED = (
    "config/cpu_features.py",
    "config/cpu_library.py",
    "engine/kernels/cpu/build.py",
    "engine/kernels/cpu/progress.py",
    "engine/kernels/cpu/scratch.py",
)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree with the modules that the hook imports, and other kernels."""
    for name in NEEDED:
        target = tmp_path / "src" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((ROOT / "src" / name).read_text())
    for name, text in SOURCES.items():
        (tmp_path / "src/engine/kernels/cpu" / name).write_text(text.replace("ANSWER", "42"))
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "stoker"}
    for name in before:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(hatch_build, "_tell", lambda line: None)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "stoker"]:
        del sys.modules[name]
    sys.modules.update(before)


def run(tree: Path, version: str) -> dict[str, Any]:
    data: dict[str, Any] = {"force_include": {}}
    hook = hatch_build.KernelBuildHook(str(tree), {}, None, None, str(tree / "dist"), "wheel")
    hook.initialize(version, data)
    return data


@needs_compiler
@pytest.mark.slow
def test_a_release_gets_the_libraries_of_all_levels_and_a_platform_tag(tree: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STOKER_BUILD_KERNELS", "all")
    data = run(tree, "standard")
    names = sorted(Path(packed).name for packed in data["force_include"].values())
    stems = [re.fullmatch(r"(.*)-[0-9a-f]{16}\.so", name)[1] for name in names]
    assert stems == sorted(f"{level}{kind}-quantised" for level in LEVELS for kind in ("", "-invariant"))
    assert all(packed.startswith("stoker/engine/kernels/cpu/prebuilt/") for packed in data["force_include"].values())
    assert re.fullmatch(r"py3-none-linux_x86_64", data["tag"])
    assert data["pure_python"] is False
    assert run(tree, "standard") == data  # nothing is compiled twice


@needs_compiler
def test_an_editable_install_compiles_into_the_source_tree(tree: Path):
    data = run(tree, "editable")
    assert data == {"force_include": {}}
    assert len(list((tree / "src/engine/kernels/cpu/prebuilt").glob("*.so"))) == 1


def test_without_a_compiler_the_wheel_is_pure(tree: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STOKER_BUILD_KERNELS", "all")
    monkeypatch.setenv("CXX", "no-such-compiler")
    said: list[str] = []
    monkeypatch.setattr(hatch_build, "_tell", said.append)
    assert run(tree, "standard") == {"force_include": {}}
    assert said == [
        "no C++ kernels: no C++ compiler found (looked for no-such-compiler); "
        "where this wheel is installed, the first start compiles them"
    ]


def test_a_wheel_compiles_nothing_unless_that_is_asked_for(tree: Path, monkeypatch: pytest.MonkeyPatch):
    """`pip install .` took ten minutes for kernels that the base installation cannot use."""
    monkeypatch.delenv("STOKER_BUILD_KERNELS", raising=False)
    assert run(tree, "standard") == {"force_include": {}}


def test_the_variable_is_effective_and_checked(tree: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STOKER_BUILD_KERNELS", "none")
    assert run(tree, "standard") == {"force_include": {}}
    monkeypatch.setenv("STOKER_BUILD_KERNELS", "some")
    with pytest.raises(ValueError, match=r"^STOKER_BUILD_KERNELS is 'some'; allowed: all, this-machine, none$"):
        run(tree, "standard")


def test_the_hook_imports_nothing_that_a_build_does_not_have(tree: Path):
    before = set(sys.modules)
    build: ModuleType = hatch_build.import_build(tree)
    assert build.LEVELS
    new = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert not new & {"torch", "numpy", "pydantic", "yaml", "typer"}
    assert importlib.import_module("stoker.config.cpu_library").PREBUILT.is_relative_to(tree)
