from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.config import MachineSpec, MemoryPlan, load_deployment, read_model_files
from stoker.config.resolve.decide import decide
from stoker.config.resolve.decisions import Decisions

from ..deployments import GIB, MACHINE
from ..model_files import write_model
from ..plan.shapes import SHAPES, write_config

KV = 128  # bytes of keys and values of one token of the small model in bfloat16: 2 * 2 layers * 2 heads * 8 * 2


def decided(
    folder: Path, *words: str, machine: MachineSpec = MACHINE, dtype: str = "BF16", **changes: Any
) -> Decisions:
    write_model(folder, dtype, **changes)
    deployment = load_deployment([], ["--model", str(folder), *words], {})
    return decide(deployment, read_model_files(deployment), machine)


def num_blocks(done: Decisions) -> int:
    assert done.memory is not None
    return done.memory.num_kv_blocks


def reason(done: Decisions, path: str) -> str:
    return f"{done.origins[path].name}: {done.origins[path].reason}"


@pytest.mark.effect("parallel.distributed_executor_backend")
def test_the_executor_follows_from_the_number_of_processes(tmp_path: Path) -> None:
    path = "parallel.distributed_executor_backend"
    alone, several = decided(tmp_path), decided(tmp_path, "-tp", "2", "-pp", "2")
    assert (alone.get(path), reason(alone, path)) == ("uni", "R397: one process computes the model")
    assert (several.get(path), reason(several, path)) == ("mp", "R397: 4 processes compute the model together")


def test_everything_is_decided_with_a_reason(tmp_path: Path) -> None:
    done = decided(tmp_path)
    autos = {path: done.get(path) for path, origin in done.origins.items() if origin.layer in ("rule", "model")}
    assert autos == {
        "device.device": "cpu",
        "device.num_threads": 4,
        "parallel.distributed_executor_backend": "uni",
        "cache.block_size": 16,
        "load.load_format": "safetensors",
        "model.config_format": "hf",
        "server.http_log_level": "info",
        "server.max_incomplete_header_bytes": 64 * 1024,
        "server.max_connections": 8192,
        "server.max_connections_per_client": 6144,
        "server.max_total_request_bytes": 256 * 1024**2,
        "server.log_format": "json",
        "scheduler.max_num_seqs": 64,
        "scheduler.max_num_batched_tokens": 2048,
        "scheduler.max_num_partial_prefills": 64,
        "scheduler.max_long_partial_prefills": 64,
        "scheduler.long_prefill_token_threshold": 20,
        "scheduler.async_scheduling": False,
        "scheduler.cuda_graph_sizes": (),
        "compilation.level": 0,
        "lora.max_cpu_loras": 1,
        "lora.lora_dtype": "bfloat16",
        "cache.kv_cache_dtype": "bfloat16",
        "model.tokenizer": str(tmp_path),
        "model.hf_config_path": str(tmp_path),
        "model.rope_theta": 10_000.0,
        "model.dtype": "bfloat16",
        "cache.kv_cache_memory_bytes": 64 * 512 * KV,
        "scheduler.max_queued_tokens": 16 * 64 * 512,
        "model.max_model_len": 512,
    }
    assert all(done.origins[path].reason for path in autos)
    assert not done.undecided


def test_limits_of_prompts_in_part_follow_each_other(tmp_path: Path) -> None:
    def limits(*words: str) -> tuple[int, int]:
        done = decided(tmp_path, *words)
        return done.get("scheduler.max_num_partial_prefills"), done.get("scheduler.max_long_partial_prefills")

    assert limits("--max-num-partial-prefills", "3") == (3, 3)
    assert limits("--max-long-partial-prefills", "1", "--max-num-seqs", "5") == (5, 1)
    assert limits("--no-enable-chunked-prefill") == (1, 1)


@pytest.mark.effect("cache.kv_cache_dtype")
def test_a_cache_in_fewer_bits_holds_more_tokens_in_the_same_memory(tmp_path: Path) -> None:
    words = ["--dtype", "float32", "--kv-cache-memory-bytes", "1MiB"]
    wide, narrow = decided(tmp_path, *words), decided(tmp_path, *words, "--kv-cache-dtype", "bfloat16")
    assert wide.get("cache.kv_cache_dtype") == "float32"
    assert num_blocks(narrow) == 2 * num_blocks(wide)


def test_a_terminal_gets_human_logs(tmp_path: Path) -> None:
    machine = MACHINE.model_copy(update={"has_terminal": True})
    assert decided(tmp_path, machine=machine).get("server.log_format") == "human"


def test_a_written_value_is_never_changed(tmp_path: Path) -> None:
    words = ["--max-num-seqs", "7", "--block-size", "8", "--dtype", "float32", "--max-model-len", "100"]
    done = decided(
        tmp_path, *words, "--kv-cache-memory-bytes", "1MiB", "--max-queued-tokens", "1", "--num-threads", "99"
    )
    assert [done.get(f"{path}") for path in ("scheduler.max_num_seqs", "cache.block_size", "model.dtype")] == [
        *(7, 8, "float32")
    ]
    assert done.get("model.max_model_len") == 100
    assert done.get("cache.kv_cache_memory_bytes") == 1 << 20
    assert num_blocks(done) == (1 << 20) // (8 * 2 * KV)
    assert done.get("scheduler.max_queued_tokens") == 1
    assert done.get("device.num_threads") == 99


@pytest.mark.parametrize(
    ("stored", "flags", "name", "said"),
    [
        ("BF16", ("avx512_bf16",), "bfloat16", "own format"),
        ("BF16", (), "bfloat16", "no bfloat16 instructions"),
        ("F32", (), "float32", "own format"),
        ("F16", ("amx_bf16",), "float32", "a float16 checkpoint"),
    ],
)
def test_the_number_format_is_the_checkpoints(
    tmp_path: Path, stored: str, flags: tuple[str, ...], name: str, said: str
) -> None:
    done = decided(tmp_path, machine=MACHINE.model_copy(update={"cpu_flags": flags}), dtype=stored)
    assert done.get("model.dtype") == name
    assert said in reason(done, "model.dtype")


def test_the_kv_cache_is_what_can_be_filled(tmp_path: Path) -> None:
    done = decided(tmp_path, "--max-num-seqs", "3")
    assert num_blocks(done) == 3 * 512 // 16
    assert reason(done, "cache.kv_cache_memory_bytes") == "R221: 3 sequences of 512 tokens each"


def test_the_kv_cache_takes_at_most_4_gib_by_itself(tmp_path: Path) -> None:
    done = decided(tmp_path, max_position_embeddings=1 << 22)
    assert num_blocks(done) * 16 * KV == 4 * GIB
    assert done.get("model.max_model_len") == 1 << 22
    longer = decided(tmp_path, max_position_embeddings=1 << 26)
    assert longer.get("model.max_model_len") == 4 * GIB // KV
    assert reason(longer, "model.max_model_len") == "R003: what the KV cache holds; the model itself supports 67108864"


def test_a_written_context_may_take_more_than_4_gib(tmp_path: Path) -> None:
    wanted = 5 * GIB // KV
    done = decided(tmp_path, "--max-model-len", str(wanted), max_position_embeddings=1 << 26)
    assert num_blocks(done) * 16 == wanted


def test_the_kv_cache_takes_what_the_weights_leave(tmp_path: Path) -> None:
    machine = MACHINE.model_copy(update={"available_memory_bytes": 2 * 7856 + 100 * 16 * KV})
    done = decided(tmp_path, "--gpu-memory-utilization", "1.0", machine=machine)
    assert num_blocks(done) == 100
    assert done.get("cache.kv_cache_memory_bytes") == 100 * 16 * KV
    assert "leaves beside the weights" in reason(done, "cache.kv_cache_memory_bytes")
    assert done.get("model.max_model_len") == 512


def test_without_room_there_are_no_blocks(tmp_path: Path) -> None:
    machine = MACHINE.model_copy(update={"available_memory_bytes": 1000})
    assert num_blocks(decided(tmp_path, machine=machine)) == 0


def test_an_override_of_blocks_decides_the_size(tmp_path: Path) -> None:
    done = decided(tmp_path, "--num-gpu-blocks-override", "7")
    assert num_blocks(done) == 7
    assert done.get("cache.kv_cache_memory_bytes") == 7 * 16 * KV
    assert done.get("model.max_model_len") == 7 * 16


def test_auto_satisfies_the_rules_about_it(tmp_path: Path) -> None:
    assert decided(tmp_path, "--max-num-seqs", "3000").get("scheduler.max_num_batched_tokens") == 3000
    done = decided(tmp_path, "--no-enable-chunked-prefill", "--max-model-len", "4000", max_position_embeddings=8192)
    assert done.get("scheduler.max_num_batched_tokens") == 4000
    assert "longest prompt" in reason(done, "scheduler.max_num_batched_tokens")


def test_without_the_model_only_its_part_waits() -> None:
    deployment = load_deployment([], ["--model", "Qwen/none", "--no-enable-chunked-prefill"], {})
    done = decide(deployment, None, MACHINE)
    assert done.undecided == {
        *("model.tokenizer", "model.dtype", "model.max_model_len", "cache.kv_cache_memory_bytes"),
        *("scheduler.max_queued_tokens", "scheduler.max_num_batched_tokens"),
        *("cache.kv_cache_dtype", "scheduler.long_prefill_token_threshold"),
        *("model.hf_config_path", "model.rope_theta", "load.load_format", "lora.lora_dtype"),
    }
    assert done.get("cache.block_size") == 16


@pytest.mark.effect("parallel.data_parallel_size", "parallel.data_parallel_size_local")
def test_replicas_divide_the_cores_and_the_memory(tmp_path: Path) -> None:
    alone, shared = decided(tmp_path / "a"), decided(tmp_path / "b", "-dp", "2")
    assert shared.get("device.num_threads") == alone.get("device.num_threads") // 2 == 2
    assert reason(shared, "device.num_threads") == "R223: 2 cores for each of 2 replicas"
    assert shared.available_memory_bytes == alone.available_memory_bytes // 2
    assert shared.memory is not None
    assert alone.memory is not None
    assert shared.memory.budget_bytes == alone.memory.budget_bytes // 2
    assert shared.memory.weights_bytes == alone.memory.weights_bytes  # each has its own
    hybrid = ("--data-parallel-hybrid-lb", "-dpr", "4", "-dpl", "4")
    assert decided(tmp_path / "c", "-dp", "8", *hybrid).get("device.num_threads") == 1


@pytest.mark.effect("parallel.tensor_parallel_size")
def test_the_processes_of_a_model_divide_the_machine_and_the_model(tmp_path: Path) -> None:
    alone, shared = decided(tmp_path / "a"), decided(tmp_path / "b", "-tp", "2")
    assert reason(shared, "device.num_threads") == "R223: 2 cores for each of 2 processes"
    assert shared.available_memory_bytes == alone.available_memory_bytes // 2
    assert shared.memory is not None
    assert alone.memory is not None
    assert 0.5 <= shared.memory.weights_bytes / alone.memory.weights_bytes < 0.55  # norms are held by both
    assert shared.memory.kv_bytes_per_token == alone.memory.kv_bytes_per_token // 2
    both = decided(tmp_path / "c", "-tp", "2", "-dp", "2")
    assert reason(both, "device.num_threads") == "R223: 1 cores for each of 4 processes"


def test_processes_that_share_tokens_have_more_blocks_in_the_same_memory(tmp_path: Path) -> None:
    def memory(name: str, *words: str) -> tuple[int, int, int, int]:
        done = decided(tmp_path / name, "-tp", "4", "--kv-cache-memory-bytes", "1MiB", *words)
        assert done.memory is not None
        return (
            done.memory.num_kv_blocks,
            done.memory.kv_block_bytes,
            done.memory.kv_cache_bytes,
            done.memory.kv_bytes_per_token,
        )

    (blocks, size, cache, token), (shared, part, same, its) = memory("a"), memory("b", "-dcp", "2")
    assert shared == 2 * blocks
    assert (2 * part, same, its) == (size, cache, token)
    assert memory("c", "-dcp", "4") == memory("a")  # a rule refuses it: key heads are held twice


def test_a_replica_that_is_alone_on_its_server_has_the_whole_machine(tmp_path: Path) -> None:
    assert decided(tmp_path, "-dp", "4", "-dpn", "3").get("device.num_threads") == 4


@pytest.mark.effect("kv_transfer.kv_connector_extra_config")
def test_the_folder_of_a_connector_is_the_one_of_stored_blocks(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    extra = "kv_connector_extra_config: {shared_storage_path: blocks}"
    (tmp_path / "deploy.yaml").write_text(f"kv_transfer: {{kv_connector: SharedStorageConnector, {extra}}}")
    deployment = load_deployment([tmp_path / "deploy.yaml"], ["--model", str(tmp_path / "model")], {})
    done = decide(deployment, read_model_files(deployment), MACHINE)
    assert done.get("cache.kv_directory") == str(tmp_path / "blocks")  # beside the file that names it
    assert reason(done, "cache.kv_directory").startswith("R400: the shared_storage_path")


def test_experts_that_move_take_memory_twice_on_their_way(tmp_path: Path) -> None:
    write_config(tmp_path, SHAPES["qwen3-30b-a3b"][0])

    def memory(*words: str) -> MemoryPlan:
        line = ["--model", str(tmp_path), "--load-format", "dummy", "-tp", "2", "-ep", "--skip-tokenizer-init", *words]
        deployment = load_deployment([], line, {})
        files = read_model_files(deployment).placed(deployment.config.parallel)
        plan = decide(deployment, files, MACHINE).memory
        assert plan is not None
        return plan

    one = 3 * 2048 * 768 * 2  # bytes of an expert in bfloat16
    fixed, moving = memory(), memory("--enable-eplb", "--eplb-config.num_redundant_experts", "2")
    assert moving.weights_bytes - fixed.weights_bytes == 48 * one
    assert (fixed.moving_bytes, moving.moving_bytes) == (0, (1 + 63) * one)  # of 128 experts 65 are there


def test_blocks_for_other_engines_take_memory_only_where_they_are_kept(tmp_path: Path) -> None:
    def memory(number: int, *words: str) -> tuple[int, int]:
        plan = decided(tmp_path / str(number), "--num-gpu-blocks-override", "64", *words).memory
        assert plan is not None
        return plan.transfer_bytes, plan.total_bytes

    section = "--kv-transfer-config.{}".format
    tcp, size = (section("kv-connector=TcpConnector"), section("kv-buffer-size=1MiB"))
    (none, alone), kept = memory(0), memory(1, tcp, size)
    assert none == 0
    assert kept == (1 << 20, alone + (1 << 20))
    assert memory(2, tcp, size, section("kv-role=kv_consumer")) == (0, alone)
    assert memory(3, section("kv-connector=SharedStorageConnector"), "--kv-directory", "/tmp/kv") == (0, alone)
