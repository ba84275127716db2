"""Every flag of `vllm serve` is known by name: to the command line, to flat files and to `engine import`."""

from __future__ import annotations

from pathlib import Path

from stoker.config.explain import find
from stoker.config.importer.read import import_words
from stoker.config.source.flags import read_flag
from stoker.config.source.flat import read_key

FLAGS = [
    line
    for line in (Path(__file__).parent / "vllm_flags.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
]


def test_the_list_is_that_of_the_whole_command() -> None:
    assert len(FLAGS) == len(set(FLAGS)) > 300
    assert {"--model", "--tensor-parallel-size", "-tp", "--shutdown-timeout"} <= set(FLAGS)


def test_each_flag_is_an_option_here_that_explain_finds() -> None:
    for flag in FLAGS:
        known = read_flag(flag)
        assert known is not None, flag
        assert known.option.path in [page.name for page in find(flag)], flag
        if flag.startswith("--"):
            assert read_key(flag.removeprefix("--")) is not None, flag
            assert read_flag(flag.replace("-", "_").replace("__", "--", 1)) is not None, flag


def test_import_says_something_about_each_flag() -> None:
    for flag in FLAGS:
        draft = import_words(["vllm", "serve", "org/model", flag, "7"])
        assert [left for left in draft.left if left.kind == "unknown" and flag in left.written] == []
