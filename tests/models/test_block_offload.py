"""KV blocks of small models in host memory and other stores, with the runner of CUDA devices, in Triton's interpreter
where there is none.

What the KV cache has evicted is copied back instead of computed, and the tokens are those of a CPU without a store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.flushing import flush
from tests.free_ports import free_port

pytest.importorskip("triton")

from tests.packages.stoker_lmcache.lmcache_servers import LikeLmcache
from tests.slow_cases import slow, slow_but

from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core import Scheduler
from stoker.engine.executor.build import build_core
from stoker.engine.kv_stores.fingerprint import fingerprint
from stoker.engine.kv_stores.open_store import open_store
from stoker.engine.kv_stores.tiered_store import TieredStore
from stoker.engine.loop.engine_core import EngineCore

from .conftest import Saved
from .engine import WITH_GPU, resolved
from .test_options import answer, finish

PROMPT = [7 * number % 61 + 10 for number in range(18)]  # two full blocks of 8
OTHER = [number + 40 for number in range(42)]  # it takes the whole cache
TWO = SamplingParams(temperature=0, max_tokens=2)
FAMILIES = ("qwen3", "deepseek_v3", "gemma3")  # keys and values, latents, windows
HOST: dict[str, Any] = {"kv_offloading_size": 0.01}
Start = Callable[..., EngineCore]
pytestmark = [
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
]


@pytest.fixture
def start(saved: Callable[[str], Saved], tmp_path: Path) -> Start:
    """An engine whose KV cache holds one sequence of maximum length, and whose steps hold a whole prompt."""

    def build(device: str, family: str = "qwen3", transfer: dict[str, Any] | None = None, **cache: Any) -> EngineCore:
        _, folder = saved(family)
        sections: dict[str, dict[str, Any]] = {
            "device": {"device": device},
            "model": {"max_model_len": 48, "enforce_eager": device == "cpu"},
            "scheduler": {"max_num_seqs": 2, "max_num_batched_tokens": 48},
            "kv_transfer": transfer or {},
            "cache": {"num_gpu_blocks_override": 6} | cache,
        }
        return build_core(resolved(folder, tmp_path, WITH_GPU, **sections))

    return build


def store_of(core: EngineCore) -> Any:
    """The store of an engine, once it has what was saved."""
    scheduler = core._scheduler
    assert isinstance(scheduler, Scheduler)
    store = scheduler.settings.store
    if isinstance(store, TieredStore):
        flush(store)
    return store


def ask(core: EngineCore, prompt: list[int] = PROMPT) -> list[int]:
    found = answer(core, prompt, TWO)
    store_of(core)
    return found


def handed_over(first: EngineCore, second: EngineCore) -> list[int]:
    """The first engine computes the prompt for others, and the second one reads its blocks."""
    request = EngineRequest(request_id="0", inputs=RequestInputs(PROMPT, TWO), is_for_others=True)
    first.add(request)
    stored = finish(first)["0"][-1].stored
    assert stored is not None
    assert len(stored.hashes) == 2
    second.add(replace(request, is_for_others=False, source=stored))
    return [token for output in finish(second)["0"] for token in output.token_ids]


@pytest.mark.effect("cache.kv_offloading_size", "cache.kv_offloading_backend")
@pytest.mark.parametrize("device", slow_but(["cpu", "cuda"], "cpu"))
@pytest.mark.parametrize("family", slow_but(FAMILIES, "qwen3"))
def test_an_evicted_prefix_is_copied_back_and_the_tokens_are_the_same(start: Start, device: str, family: str) -> None:
    without, core = start("cpu", family), start(device, family, **HOST)
    expected = [ask(without), ask(without, OTHER)]
    assert [ask(core), ask(core, OTHER)] == expected
    computed = core.stats.num_step_tokens
    assert core.stats.store_hits == 0
    assert ask(core) == expected[0]
    assert core.stats.store_hits == 16
    assert core.stats.num_step_tokens - computed == 3  # the last two of the prompt, and one that was sampled
    assert core.stats.num_free_blocks == core.stats.num_blocks


@pytest.mark.parametrize(("device", "dtype"), [("cpu", "int8"), slow("cuda", "fp8")])
def test_quantised_blocks_come_back_with_their_scales(start: Start, device: str, dtype: str) -> None:
    core = start(device, **HOST, kv_cache_dtype=dtype)
    expected = ask(core)
    ask(core, OTHER)
    assert ask(core) == expected
    assert core.stats.store_hits == 16


@pytest.mark.parametrize(
    ("device", "family"),
    [("cpu", "qwen3"), *(slow("cpu", each) for each in FAMILIES if each != "qwen3"), slow("cuda", "qwen3")],
)
def test_a_preempted_sequence_gets_its_blocks_back(start: Start, device: str, family: str) -> None:
    """Two sequences outgrow the cache together: one is preempted, and the other takes all of its blocks."""
    asked = [(PROMPT + OTHER[:5], 19), (OTHER[:9], 31)]

    def run(core: EngineCore) -> list[list[int]]:
        for name, (prompt, count) in enumerate(asked):
            sampling = replace(TWO, max_tokens=count, ignore_eos=True)
            core.add(EngineRequest(request_id=str(name), inputs=RequestInputs(prompt, sampling)))
        found = finish(core)
        return [[token for output in found[name] for token in output.token_ids] for name in ("0", "1")]

    expected = run(start("cpu", family, num_gpu_blocks_override=16))
    core, without = start(device, family, **HOST), start("cpu", family)
    assert run(core) == run(without) == expected
    assert core.stats.num_preemptions > 0
    assert core.stats.num_step_tokens < without.stats.num_step_tokens


def connector(name: str, folder: Path) -> dict[str, Any]:
    """Arguments of `start`."""
    files = {"kv_directory": str(folder / "kv")}
    match name:
        case "files":
            return files
        case "host memory and files":
            return files | HOST
        case "shared storage":
            return {"transfer": {"kv_connector": "SharedStorageConnector"}} | files
        case "own":
            shelf = {"shelf": str(folder)}
            return {"transfer": {"kv_connector": "tests.own_stores:DictStore", "kv_connector_extra_config": shelf}}
        case "tcp":
            return {"transfer": {"kv_connector": "TcpConnector", "kv_port": free_port()}}
        case _:
            return {"transfer": {"kv_connector": "TcpConnector", "kv_port": free_port()}} | files | HOST


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "name"),
    [
        *(("qwen3", name) for name in ("host memory and files", "shared storage", "tcp", "own")),
        *((family, "all") for family in FAMILIES if family != "gemma3"),
    ],
)
def test_another_engine_reads_the_blocks_of_a_device(start: Start, family: str, name: str, tmp_path: Path) -> None:
    expected = ask(start("cpu", family))
    first = start("cuda", family, **connector(name, tmp_path))
    if name in ("tcp", "shared storage", "all"):
        second = start("cuda", family, **connector(name, tmp_path / "other" if name == "all" else tmp_path))
        found = handed_over(first, second)
    else:
        assert ask(first) == expected
        first.close()  # once all blocks are in files
        second = start("cuda", family, **connector(name, tmp_path))
        found = ask(second)
    assert found == expected
    assert second.stats.store_hits == 16
    assert second.stats.num_step_tokens == 3


@pytest.mark.slow
def test_an_lmcache_server_keeps_the_blocks_of_a_device(start: Start) -> None:
    expected = ask(start("cpu"))
    with contextlib.closing(LikeLmcache()) as server:
        place = {"lmcache.mp.host": "127.0.0.1", "lmcache.mp.port": server.port, "lmcache.mp.mq_timeout": 60}
        transfer = {"kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": place}
        first, second = start("cuda", transfer=transfer), start("cuda", transfer=transfer)
        for core in (first, second):
            store_of(core).lasting.flush()  # the server is found beside the start
        assert ask(first) == expected
        store_of(first).lasting.flush()
        assert ask(second) == expected
        assert second.stats.store_hits == 16
        for core in (first, second):
            core.close()


@pytest.mark.slow
def test_blocks_that_cannot_be_read_are_computed(start: Start, tmp_path: Path) -> None:
    expected, where = ask(start("cpu")), connector("files", tmp_path)
    first = start("cuda", **where)
    assert ask(first) == expected
    first.close()
    second = start("cuda", **where)
    for path in (tmp_path / "kv").glob("*/*"):
        path.write_bytes(b"\xff" + path.read_bytes()[1:])
    assert ask(second) == expected
    assert second.stats.store_hits == 0
    assert second.stats.num_free_blocks == second.stats.num_blocks


def test_blocks_of_a_device_are_not_those_of_a_cpu(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    """Their kernels may lay out a block differently."""

    def of(device: str, max_model_len: int = 64, **cache: Any) -> str:
        sections = {"device": {"device": device}, "model": {"max_model_len": max_model_len}, "cache": cache}
        return fingerprint(resolved(saved("qwen3")[1], tmp_path, WITH_GPU, **sections))

    assert of("cuda", kv_cache_dtype="fp8") == of("cuda", 32, kv_cache_dtype="fp8")
    fp8 = {"kv_cache_dtype": "fp8", "calculate_kv_scales": True}
    scaled = [of("cuda", **fp8), of("cuda", 32, **fp8)]
    others = [of(device, block_size=size) for device in ("cpu", "cuda") for size in (8, 16)]
    assert len({*scaled, *others}) == 6
    assert [of(device, **HOST) for device in ("cpu", "cuda")] == others[::2]


@pytest.mark.effect("lora.lora_target_modules")
def test_blocks_of_adapters_depend_on_the_layers_that_are_adapted(
    saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    def of(**lora: Any) -> str:
        return fingerprint(resolved(saved("qwen3")[1], tmp_path, lora=lora))

    some = {"lora_target_modules": ["q_proj", "v_proj"]}
    assert of() == of(enable_lora=True) == of(enable_lora=True, max_lora_rank=64)
    assert of(enable_lora=True, **some) != of(enable_lora=True)
    assert of(enable_lora=True, lora_target_modules=["v_proj", "q_proj"]) == of(enable_lora=True, **some)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_offloading_is_also_a_connector(saved: Callable[[str], Saved], tmp_path: Path, device: str) -> None:
    transfer = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 20}}
    found = resolved(saved("qwen3")[1], tmp_path, WITH_GPU, device={"device": device}, kv_transfer=transfer)
    assert found.cache.kv_offloading_bytes == 1 << 20
    store = open_store(found)
    assert store is not None
    assert store.memory._max_bytes == 1 << 20
