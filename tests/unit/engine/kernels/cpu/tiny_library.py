"""Sources small enough to compile in a moment, in place of the kernels."""

from pathlib import Path

import pytest

from stoker.config import cpu_library
from stoker.config.cpu_features import Level, NoKernels, find_compiler
from stoker.config.cpu_library import LibrarySpec
from stoker.engine.kernels.cpu import build, library

EXPORT = 'extern "C" __attribute__((visibility("default")))\n'
SOURCES = {
    "batch_invariant.h": "#pragma once\n",
    "threads.cpp": f"{EXPORT} void set_num_threads(int) {{}}\n",
    "answer.cpp": f"""#include "batch_invariant.h"
#if defined(STOKER_BATCH_INVARIANT)
#define SIGN -
#else
#define SIGN
#endif
{EXPORT} int answer() {{ return SIGN ANSWER; }}
""",
    "quantise.cpp": f"{EXPORT} int quantised_answer() {{ return ANSWER * 10; }}\n",
}


def has_compiler() -> bool:
    try:
        find_compiler()
    except NoKernels:
        return False
    return True


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on this machine")


def spec(answer: int = 42, is_batch_invariant: bool = False, has_quantised: bool = False) -> LibrarySpec:
    return LibrarySpec(Level("tiny", (), (f"-DANSWER={answer}",)), is_batch_invariant, has_quantised)


@pytest.fixture
def tiny_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the sources. No library is in the package, and none has been loaded before."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for name, text in SOURCES.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(cpu_library, "SOURCES", folder)
    monkeypatch.setattr(build, "SOURCES", folder)
    monkeypatch.setattr(cpu_library, "PREBUILT", folder / "prebuilt")
    monkeypatch.setattr(library, "_loaded", {})
    return folder
