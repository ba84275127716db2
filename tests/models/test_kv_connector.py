"""A connector of the user's own: prefixes in its storage, and engines that go on whatever it does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests import own_stores
from tests.blocks_over_http import MODULE, shown, storage

from stoker.config.exit_codes import EXIT_INVALID_CONFIGURATION
from stoker.engine.executor.build import build_core
from stoker.engine.kv_stores import connector_store
from stoker.engine.kv_stores.connector_store import ConnectorStore
from stoker.engine.loop.engine_core import EngineCore
from stoker.engine.plugins import PluginError

from .conftest import Saved
from .engine import resolved
from .test_block_files import PROMPT, num_computed
from .test_options import answer

Start = Callable[..., EngineCore]


@pytest.fixture
def start(saved: Callable[[str], Saved], tmp_path: Path) -> Start:
    """An engine of a small model with these options of `kv_transfer`."""

    def build(family: str = "qwen3", cache: dict[str, Any] | None = None, **transfer: Any) -> EngineCore:
        _, folder = saved(family)
        return build_core(resolved(folder, tmp_path, kv_transfer=transfer, cache=cache or {}))

    return build


def named(name: str, tmp_path: Path) -> dict[str, Any]:
    return {"kv_connector": f"tests.own_stores:{name}", "kv_connector_extra_config": {"shelf": str(tmp_path)}}


@pytest.mark.effect("kv_transfer.kv_connector", "kv_transfer.kv_connector_module_path")
@pytest.mark.parametrize("family", ["qwen3", "gemma3", "deepseek_v3"])
def test_the_connector_of_the_guide_keeps_a_prefix_for_another_engine(
    start: Start, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / f"{MODULE}.py").write_text(shown("python"))
    monkeypatch.syspath_prepend(tmp_path)
    transfer = yaml.safe_load(shown("yaml"))["kv_transfer"]
    with storage() as server:
        transfer["kv_connector_extra_config"]["url"] = server.url
        first = start(family, **transfer)
        expected = answer(first, PROMPT)
        first.close()
        assert len(server.stored) == 5
        again = start(family, **transfer)
        assert answer(again, PROMPT) == expected
        assert again.stats.prefix_hits == again.stats.store_hits == 40
        assert num_computed(first) - num_computed(again) == 40
        assert again.stats.store_failures == 0
        again.close()
        assert len(server.stored) == 5


@pytest.mark.effect("kv_transfer.kv_connector")
@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer"])
def test_a_role_saves_or_loads(start: Start, role: str, tmp_path: Path):
    both = named("DictStore", tmp_path)
    first = start(**both)
    expected = answer(first, PROMPT)
    first.close()
    blocks = own_stores.DictStore(str(tmp_path)).blocks
    if role == "kv_producer":
        del blocks[next(iter(blocks))]
    second = start(**both, kv_role=role)
    assert answer(second, PROMPT) == expected
    second.close()
    assert second.stats.store_hits == (0 if role == "kv_producer" else 40)
    assert len(blocks) == 5


@pytest.mark.parametrize(
    ("name", "num_failures"), [("RaisesInLoad", 1), ("RaisesInSave", 1), ("ReturnsOthers", 1), ("RaisesAfterTwo", 1)]
)
def test_answers_are_the_same_with_a_connector_that_fails(start: Start, name: str, num_failures: int, tmp_path: Path):
    first = start(**named("DictStore", tmp_path))
    expected = answer(first, PROMPT)
    first.close()
    if name == "RaisesInSave":
        own_stores.DictStore(str(tmp_path)).blocks.clear()
    failing = start(**named(name, tmp_path))
    assert answer(failing, PROMPT) == expected
    failing.close()
    assert failing.stats.store_hits == (16 if name == "RaisesAfterTwo" else 0)
    assert failing.stats.store_failures >= num_failures
    assert failing.stats.num_free_blocks == failing.stats.num_blocks


def test_an_answer_is_computed_if_a_connector_hangs(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = start(**named("DictStore", tmp_path))
    expected = answer(first, PROMPT)
    first.close()
    monkeypatch.setattr(connector_store, "CALL_LIMIT_S", 1.0)
    hanging = start(**named("Hangs", tmp_path))
    assert answer(hanging, PROMPT) == expected
    assert hanging.stats.store_hits == 8  # what was yielded before
    assert answer(hanging, [9, *PROMPT])  # is not loaded
    assert hanging.stats.store_failures >= 1
    store = hanging._store.lasting
    assert isinstance(store, ConnectorStore)
    connector = store._connector
    assert isinstance(connector, own_stores.Hangs)
    connector.go_on.set()
    hanging.close()
    assert connector.asked == [5]


@pytest.mark.parametrize(
    ("transfer", "message"),
    [
        (
            {"kv_connector": "tests.none:Own"},
            "`kv_transfer.kv_connector` (PLACE): tests.none:Own: tests.none cannot be",
        ),
        (
            {"kv_connector": "HasNoSave", "kv_connector_module_path": "tests.own_stores"},
            "`kv_transfer.kv_connector` (PLACE): tests.own_stores:HasNoSave: the class has no save",
        ),
        (
            {"kv_connector": "tests.own_stores:DictStore", "kv_connector_extra_config": {"shelf": ""}},
            "`kv_transfer.kv_connector` (PLACE): kv_connector_extra_config.shelf: not allowed; allowed: a text, of a "
            "length of at least 1 (PLACE)",
        ),
        (
            {"kv_connector": "tests.own_stores:DictStore"},
            "`kv_transfer.kv_connector` (PLACE): kv_connector_extra_config.shelf: missing; allowed: a text",
        ),
    ],
)
def test_a_class_that_cannot_be_used_ends_the_start_with_its_place(
    start: Start, transfer: dict[str, Any], message: str
):
    with pytest.raises(PluginError) as caught:
        start(**transfer)
    assert re.sub(r"\(\S*deployment\.yaml:1:[0-9]+\)", "(PLACE)", str(caught.value)).startswith(message)
    assert caught.value.exit_code == EXIT_INVALID_CONFIGURATION
