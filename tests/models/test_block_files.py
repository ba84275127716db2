"""Blocks in files: prefixes after a restart, of engines with small models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.flushing import flush

from stoker.engine.core import Scheduler
from stoker.engine.executor.build import build_core
from stoker.engine.kv_stores.block_files import BlockFiles
from stoker.engine.kv_stores.tiered_store import TieredStore
from stoker.engine.loop.engine_core import EngineCore

from .conftest import Saved
from .engine import resolved
from .test_options import add, answer, finish

PROMPT = [7 * number % 61 + 10 for number in range(45)]  # five full blocks of 8
Start = Callable[..., EngineCore]


@pytest.fixture
def start(saved: Callable[[str], Saved], tmp_path: Path) -> Start:
    """An engine of a small model that stores its blocks, with these options of `cache`."""

    def build(family: str = "qwen3", **cache: Any) -> EngineCore:
        _, folder = saved(family)
        return build_core(resolved(folder, tmp_path, cache={"kv_directory": str(tmp_path / "kv"), **cache}))

    return build


def stored(core: EngineCore, folder: Path) -> list[Path]:
    """The files of an engine once all are written."""
    scheduler = core._scheduler
    assert isinstance(scheduler, Scheduler)
    store = scheduler.settings.store
    assert isinstance(store, TieredStore)
    assert isinstance(store.lasting, BlockFiles)
    flush(store.lasting)
    return sorted((folder / "kv").glob("*/*"))


def num_computed(core: EngineCore) -> int:
    return core.stats.num_step_tokens


@pytest.mark.effect("cache.kv_directory")
@pytest.mark.parametrize("family", ["qwen3", "gemma3", "deepseek_v3"])
def test_a_prefix_is_read_after_a_restart_and_the_tokens_are_the_same(start: Start, tmp_path: Path, family: str):
    first = start(family)
    expected = answer(first, PROMPT)
    assert len(stored(first, tmp_path)) == 5
    again = start(family)
    assert answer(again, PROMPT) == expected
    assert again.stats.prefix_hits == 40
    assert num_computed(first) - num_computed(again) == 40


def test_another_block_size_does_not_read_the_files(start: Start, tmp_path: Path):
    first = start()
    answer(first, PROMPT)
    stored(first, tmp_path)
    other = start(block_size=16)
    answer(other, PROMPT)
    assert other.stats.prefix_hits == 0


@pytest.mark.parametrize("damage", ["cut", "changed", "swapped", "gone"])
def test_a_damaged_file_is_removed_and_its_tokens_are_computed(
    start: Start, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
):
    first = start()
    expected = answer(first, PROMPT)
    paths = stored(first, tmp_path)
    data = paths[0].read_bytes()
    again = start()
    for path in paths:
        match damage:
            case "cut":
                path.write_bytes(path.read_bytes()[:-9])
            case "changed":
                path.write_bytes(b"\xff" + path.read_bytes()[1:])
            case "swapped":
                path.write_bytes(data if path != paths[0] else paths[1].read_bytes())
            case "gone":
                path.unlink()
    assert answer(again, PROMPT) == expected
    assert again.stats.prefix_hits == 0
    assert again.stats.num_free_blocks == again.stats.num_blocks
    assert ("damaged" in caplog.text) == (damage != "gone")


@pytest.mark.effect("cache.kv_directory_size")
def test_files_that_were_not_used_for_the_longest_time_are_removed(start: Start, tmp_path: Path):
    first = start()
    answer(first, PROMPT)
    paths = stored(first, tmp_path)
    size = paths[0].stat().st_size
    small = start(kv_directory_size=3 * size)
    assert len(stored(small, tmp_path)) == 3
    answer(small, [9, *PROMPT])
    assert len(stored(small, tmp_path)) == 3


def test_other_requests_run_while_one_waits_for_its_blocks(start: Start, tmp_path: Path):
    first = start()
    expected = answer(first, PROMPT)
    stored(first, tmp_path)
    again = start()
    add(again, PROMPT, [5] * 20, PROMPT[:30])
    outputs = finish(again)
    assert [token for output in outputs["0"] for token in output.token_ids] == expected
    assert len(outputs) == 3
    assert again.stats.num_free_blocks == again.stats.num_blocks
