"""KV blocks of one engine that another reads, of engines with small models."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.free_ports import free_port

from stoker.engine.api import CacheScope, EngineRequest, FinishReason, RequestInputs, StoredBlocks
from stoker.engine.core import Scheduler
from stoker.engine.executor.build import build_core
from stoker.engine.loop.engine_core import EngineCore

from .conftest import Saved
from .engine import GREEDY, resolved
from .test_options import finish

PROMPT = [7 * number % 61 + 10 for number in range(45)]  # five full blocks of 8
Start = Callable[..., EngineCore]
FAMILIES = pytest.mark.parametrize("family", ["qwen3", "gemma3", "deepseek_v3"])


@pytest.fixture
def start(saved: Callable[[str], Saved], tmp_path: Path) -> Iterator[Start]:
    """An engine of a small model with these options of `kv_transfer`, closed at the end of the test."""
    with contextlib.ExitStack() as stack:

        def build(family: str = "qwen3", *, cache: dict[str, Any] | None = None, **transfer: Any) -> EngineCore:
            _, folder = saved(family)
            transfer = {"kv_connector": "TcpConnector", "kv_port": free_port()} | transfer
            core = build_core(resolved(folder, tmp_path, kv_transfer=transfer, cache=cache or {}))
            stack.callback(core.close)
            return core

        yield build


def shared(tmp_path: Path) -> dict[str, Any]:
    """Options of the other connector."""
    extra = {"shared_storage_path": str(tmp_path / "kv")}
    return {"kv_connector": "SharedStorageConnector", "kv_connector_extra_config": extra, "kv_port": None}


def compute(core: EngineCore, prompt: list[int] = PROMPT, **request: Any) -> tuple[list[int], StoredBlocks | None]:
    """The tokens, and what is stored at the end."""
    inputs = RequestInputs(prompt, GREEDY, request.pop("scope", CacheScope()))
    core.add(EngineRequest(request_id="r", inputs=inputs, **request))
    outputs = finish(core)["r"]
    assert outputs[-1].finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
    assert core.stats.num_free_blocks == core.stats.num_blocks
    return [token for output in outputs for token in output.token_ids], outputs[-1].stored


def for_others(core: EngineCore, prompt: list[int] = PROMPT) -> tuple[list[int], StoredBlocks]:
    tokens, stored = compute(core, prompt, is_for_others=True)
    assert stored is not None
    return tokens, stored


def num_computed(core: EngineCore) -> int:
    return core.stats.num_step_tokens


@FAMILIES
@pytest.mark.effect("kv_transfer.kv_connector", "kv_transfer.kv_port", "kv_transfer.kv_ip")
@pytest.mark.quick_cases(1)
def test_an_engine_continues_a_prompt_that_another_has_computed(start: Start, family: str):
    port = free_port()
    alone, theirs, ours = start(family, kv_connector=None), start(family, kv_port=port), start(family)
    expected, nothing = compute(alone)
    assert nothing is None
    tokens, stored = for_others(theirs)
    assert tokens == expected
    assert (len(stored.hashes), stored.host, stored.port) == (5, "127.0.0.1", port)
    assert compute(ours, source=stored) == (expected, None)
    assert num_computed(theirs) - num_computed(ours) == ours.stats.store_hits == 40
    assert ours.stats.prefix_hits == 40


@FAMILIES
@pytest.mark.effect("kv_transfer.kv_connector")
def test_an_engine_reads_a_prompt_from_a_folder(start: Start, tmp_path: Path, family: str):
    alone, theirs, ours = start(family, kv_connector=None), *(start(family, **shared(tmp_path)) for _ in range(2))
    expected, _ = compute(alone)
    tokens, stored = for_others(theirs)
    assert tokens == expected
    assert (len(stored.hashes), stored.host) == (5, "")
    assert compute(ours, source=stored) == (expected, None)
    assert num_computed(theirs) - num_computed(ours) == ours.stats.store_hits == 40


@FAMILIES
@pytest.mark.quick_cases(1)
def test_a_prompt_that_was_cached_is_stored_for_others_too(start: Start, family: str):
    """As far as its blocks are there: those before a window are not."""
    theirs, ours = start(family), start(family)
    expected, _ = compute(theirs)
    _, stored = for_others(theirs)
    assert len(stored.hashes) == 5 or family == "gemma3"
    assert compute(ours, source=stored)[0] == expected
    assert ours.stats.store_hits == 8 * len(stored.hashes)


def test_an_engine_that_is_gone_costs_its_blocks_and_not_the_request(start: Start):
    theirs, ours = start(), start()
    expected, stored = for_others(theirs)
    theirs.close()
    assert compute(ours, source=stored)[0] == expected
    assert num_computed(ours) == num_computed(theirs)
    assert ours.stats.store_hits == 0


@pytest.mark.effect("kv_transfer.kv_buffer_size")
@pytest.mark.slow
def test_a_buffer_that_is_too_small_loses_blocks_and_not_the_request(start: Start):
    block = 8 * start().info.kv_cache_bytes // (64 * 8)
    for size, num_stored in ((5 * block, 5), (4 * block, 0)):
        theirs, ours = start(kv_buffer_size=size), start()
        expected, stored = for_others(theirs)
        assert len(stored.hashes) == num_stored
        assert compute(ours, source=stored)[0] == expected
        assert ours.stats.store_hits == 8 * num_stored


@pytest.mark.effect("kv_transfer.kv_load_failure_policy")
def test_blocks_that_cannot_be_read_are_computed(start: Start):
    theirs, ours = start(), start(kv_load_failure_policy="recompute")
    expected, stored = for_others(theirs)
    wrong = StoredBlocks(stored.hashes, stored.host, free_port())
    assert compute(ours, source=wrong)[0] == expected


@pytest.mark.parametrize("kind", ["other prompt", "shifted", "longer", "none"])
@pytest.mark.quick_cases(1)
def test_names_that_are_not_those_of_the_prompt_are_not_read(start: Start, kind: str, caplog: pytest.LogCaptureFixture):
    theirs, ours = start(), start()
    expected, stored = for_others(theirs)
    names = stored.hashes
    named = {
        "other prompt": for_others(theirs, PROMPT[::-1])[1].hashes,
        "shifted": names[1:],
        "longer": (*names, *names),
        "none": (),
    }[kind]
    assert compute(ours, source=StoredBlocks(named, stored.host, stored.port))[0] == expected
    assert ours.stats.store_hits == (40 if kind == "longer" else 0)
    assert ("are not those of its prompt" in caplog.text) == (kind in ("other prompt", "shifted"))


def test_blocks_of_another_salt_are_not_read(start: Start):
    theirs, ours = start(), start()
    expected, stored = compute(theirs, is_for_others=True, scope=CacheScope("a"))
    assert stored is not None
    assert len(stored.hashes) == 5
    for salt, num_read in (("", 0), ("b", 0), ("a", 40)):
        assert compute(ours, source=stored, scope=CacheScope(salt))[0] == expected
        assert ours.stats.store_hits == num_read


@pytest.mark.slow
def test_the_last_token_of_a_prompt_of_whole_blocks_is_computed(start: Start):
    theirs, ours, prompt = start(), start(), PROMPT[:40]
    expected, stored = for_others(theirs, prompt)
    assert len(stored.hashes) == 5
    assert compute(ours, prompt, source=stored)[0] == expected
    assert ours.stats.store_hits == 32


def test_an_engine_of_another_model_reads_nothing(start: Start):
    theirs, ours = start(), start(cache={"kv_cache_dtype": "bfloat16"})
    _, stored = for_others(theirs)
    compute(ours, source=stored)
    assert stored.hashes
    assert ours.stats.store_hits == 0


@pytest.mark.effect("kv_transfer.kv_role")
def test_a_consumer_keeps_nothing_for_others(start: Start):
    consumer = start(kv_role="kv_consumer")
    assert for_others(consumer, PROMPT[::-1])[1].hashes == ()
    theirs = start(kv_role="kv_producer")
    expected, stored = for_others(theirs)
    assert len(stored.hashes) == 5
    assert compute(consumer, source=stored)[0] == expected
    assert consumer.stats.store_hits == 40


def test_a_request_that_is_aborted_before_its_blocks_are_stored_leaves_nothing(start: Start, tmp_path: Path):
    core = start(**shared(tmp_path))
    for _ in range(2):
        core.add(EngineRequest(request_id="r", inputs=RequestInputs(PROMPT, GREEDY), is_for_others=True))
        core.step()
        core.abort("r")
    assert finish(core) == {}
    scheduler = core._scheduler
    assert isinstance(scheduler, Scheduler)
    assert not scheduler.sequences.live
    assert core.stats.num_free_blocks == core.stats.num_blocks


@pytest.mark.slow
def test_several_requests_read_from_several_engines(start: Start):
    prompts = [[number, *PROMPT[: 30 + number]] for number in range(5)]
    engines = [start(), start()]
    answers, sources = zip(
        *(for_others(engines[number % 2], prompt) for number, prompt in enumerate(prompts)), strict=True
    )
    engines[1].close()
    ours = start()
    for number, prompt in enumerate(prompts):
        inputs = RequestInputs(prompt, GREEDY)
        ours.add(EngineRequest(request_id=str(number), inputs=inputs, source=sources[number]))
    outputs = finish(ours)
    assert [[token for output in outputs[str(number)] for token in output.token_ids] for number in range(5)] == list(
        answers
    )
    assert ours.stats.num_free_blocks == ours.stats.num_blocks
    assert ours.stats.store_hits == sum(8 * len(sources[number].hashes) for number in (0, 2, 4))
