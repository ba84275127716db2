"""The compilation itself: what is compiled, how often, and what is reported meanwhile."""

import re

import pytest

from stoker.config.cpu_library import BATCH_INVARIANT, PREBUILT, QUANTISED, SOURCES
from stoker.engine.kernels.cpu import __main__ as command
from stoker.engine.kernels.cpu import build
from stoker.engine.kernels.cpu.__main__ import main
from stoker.engine.kernels.cpu.build import compile_libraries, specs_of

from .tiny_library import needs_compiler, spec, tiny_sources

__all__ = ["tiny_sources"]
needs_sources = pytest.mark.usefixtures("tiny_sources")


@needs_compiler
@needs_sources
def test_progress_is_reported_when_the_work_begins_and_after_each_file(tmp_path):
    seen = []
    compile_libraries([spec()], tmp_path, seen.append)
    assert [(each.num_done, each.num_files) for each in seen] == [(0, 2), (1, 2), (2, 2)]


@needs_compiler
@needs_sources
def test_libraries_of_one_level_share_what_does_not_read_the_flag(tmp_path):
    seen = []
    made = compile_libraries([spec(), spec(is_batch_invariant=True)], tmp_path, seen.append)
    assert seen[-1].num_files == 3  # threads.cpp once, answer.cpp twice
    assert [path.name for path in made] == [spec().file_name, spec(is_batch_invariant=True).file_name]


@needs_compiler
@needs_sources
def test_the_same_sources_give_the_same_bytes(tmp_path):
    made = []
    for name in ("one", "another"):
        (tmp_path / name).mkdir()
        made += compile_libraries([spec(has_quantised=True)], tmp_path / name, lambda _: None, jobs=len(name))
    assert made[0].read_bytes() == made[1].read_bytes()
    assert str(tmp_path).encode() not in made[0].read_bytes()


@needs_compiler
@needs_sources
def test_the_command_compiles_for_this_machine_and_removes_libraries_of_older_sources(
    tmp_path, monkeypatch, tiny_sources, capsys
):
    level = spec().level
    monkeypatch.setattr(build, "choose_level", lambda *_: (level, "the only one"))
    monkeypatch.setattr(build, "LEVELS", {"tiny": level})
    prebuilt = tiny_sources / "prebuilt"
    monkeypatch.setattr(command, "PREBUILT", prebuilt)
    assert main([]) == 0
    assert [path.name for path in prebuilt.iterdir()] == [spec().file_name]
    assert "C++ kernels for tiny: 2 of 2 files\n" in capsys.readouterr().err
    assert main([]) == 0
    assert capsys.readouterr().err == "C++ kernels for tiny: already compiled\n"
    assert main(["--all"]) == 0
    first = {path.name for path in prebuilt.iterdir()}
    assert first == {
        each.file_name for quantised in (False, True) for each in specs_of(["tiny"], has_quantised=quantised)
    }
    (tiny_sources / "threads.cpp").write_text((tiny_sources / "threads.cpp").read_text() + "// edited\n")
    assert main([]) == 0
    (second,) = (path.name for path in prebuilt.iterdir())
    assert second not in first


def test_the_command_says_when_there_is_no_compiler(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(command, "PREBUILT", tmp_path)
    monkeypatch.setattr(build, "find_library", lambda *_: None)
    assert main([]) == 0
    assert capsys.readouterr().err == (
        "no C++ kernels: no C++ compiler found (looked for no-such-compiler); torch is used instead, which is slower\n"
    )


def test_every_level_has_a_plain_and_a_batch_invariant_library():
    specs = specs_of(["amx", "portable"], has_quantised=True)
    names = ["amx-quantised", "amx-invariant-quantised", "portable-quantised", "portable-invariant-quantised"]
    assert [each.name for each in specs] == names


def test_sources_that_read_the_batch_invariant_flag_include_its_header():
    """Others are compiled once for both libraries: a file that read the macro itself would be wrong in one of them."""
    readers = [path.name for path in SOURCES.iterdir() if path.suffix in (".cpp", ".h") and
               re.search(r"\bSTOKER_BATCH_INVARIANT\b", path.read_text()) and "#if" in path.read_text()]  # fmt: skip
    macro = BATCH_INVARIANT.removeprefix("-D")
    assert [name for name in readers if re.search(rf"defined\({macro}\)", (SOURCES / name).read_text())] == [
        "batch_invariant.h"
    ]
    assert set(QUANTISED) <= {path.name for path in SOURCES.glob("*.cpp")}
    assert PREBUILT.parent == SOURCES
