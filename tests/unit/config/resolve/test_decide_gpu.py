"""What `auto` becomes on a GPU, in Triton's interpreter, and on a machine without either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.config import ConfigError, MachineSpec, Resolved, load_deployment, read_model_files, resolve_deployment
from stoker.config.graph_sizes import usual_sizes, written_sizes
from stoker.config.memory.gpu_reserve import LINK_BYTES, SCORES_BYTES, step_bytes
from stoker.model.read import read_config

from ..deployments import GIB, H200, INTERPRETING, MACHINE, WITH_GPU
from ..model_files import write_model
from ..plan.shapes import config_of

SIZES = "scheduler.cuda_graph_sizes"


def resolved(
    folder: Path, *words: str, machine: MachineSpec = WITH_GPU, dtype: str = "BF16", **changes: Any
) -> Resolved:
    deployment = load_deployment([], ["--model", str(write_model(folder, dtype, **changes)), *words], {})
    return resolve_deployment(deployment, read_model_files(deployment), machine)


def with_gpu(**changes: Any) -> MachineSpec:
    return WITH_GPU.model_copy(update={"gpu": H200.model_copy(update=changes)})


@pytest.mark.effect("device.device")
def test_auto_takes_the_gpu_and_its_own_defaults(tmp_path: Path) -> None:
    gpu = resolved(tmp_path)
    assert (gpu.device.device, gpu.machine.gpu) == ("cuda", H200)
    assert str(gpu.origin("device.device")) == "auto, R225: there is an NVIDIA H200"
    assert (gpu.cache.block_size, gpu.scheduler.max_num_seqs, gpu.scheduler.max_num_batched_tokens) == (64, 256, 8192)
    assert gpu.scheduler.async_scheduling
    assert gpu.compilation.level == 3
    assert gpu.warnings == ()
    cpu = resolved(tmp_path, "--device", "cpu")
    assert (cpu.device.device, cpu.cache.block_size, cpu.scheduler.max_num_seqs) == ("cpu", 16, 64)
    assert (cpu.scheduler.async_scheduling, cpu.scheduler.cuda_graph_sizes, cpu.compilation.level) == (False, (), 0)
    assert cpu.memory.activation_bytes == 0


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (MACHINE, "no GPU: this machine is made up"),
        (INTERPRETING, "no GPU: this machine is made up"),
        (with_gpu(compute_capability=(7, 5), name="Tesla T4"), "the Tesla T4 is older than this build's kernels"),
    ],
)
def test_auto_takes_the_cpu_where_no_gpu_can_be_used(tmp_path: Path, machine: MachineSpec, reason: str) -> None:
    record = resolved(tmp_path, machine=machine)
    assert record.device.device == "cpu"
    assert str(record.origin("device.device")) == f"auto, R225: {reason}"


def test_a_gpu_that_is_not_there_is_the_machines_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(tmp_path, "--device", "cuda", machine=MACHINE)
    assert caught.value.exit_code == 4
    said = str(caught.value)
    assert "`device.device` is cuda, and this machine has no GPU: this machine is made up" in said
    assert "write `device: auto`" in said


@pytest.mark.parametrize(
    ("stored", "machine", "dtype"),
    [
        ("F16", WITH_GPU, "float16"),
        ("BF16", WITH_GPU, "bfloat16"),
        ("F32", WITH_GPU, "float32"),
        ("BF16", INTERPRETING, "float32"),
        ("F16", INTERPRETING, "float16"),
    ],
)
def test_a_gpu_computes_in_the_checkpoints_format(
    tmp_path: Path, stored: str, machine: MachineSpec, dtype: str
) -> None:
    record = resolved(tmp_path, "--device", "cuda", machine=machine, dtype=stored)
    assert (record.model.dtype, record.cache.kv_cache_dtype) == (dtype, dtype)


@pytest.mark.effect("cache.kv_cache_dtype")
@pytest.mark.parametrize("written", ["fp8", "fp8_e4m3"])
def test_a_cache_in_fp8_holds_twice_the_tokens_of_bfloat16(tmp_path: Path, written: str) -> None:
    words = ["--kv-cache-memory-bytes", "1MiB"]
    wide, narrow = resolved(tmp_path, *words), resolved(tmp_path, *words, "--kv-cache-dtype", written)
    assert narrow.cache.kv_cache_dtype == "fp8"
    assert narrow.memory.kv_bytes_per_token * 2 == wide.memory.kv_bytes_per_token
    assert narrow.num_kv_blocks == 2 * wide.num_kv_blocks


def test_a_cache_in_fp8_needs_a_gpu_that_converts_it(tmp_path: Path) -> None:
    words = "--device", "cuda", "--kv-cache-dtype", "fp8"
    assert resolved(tmp_path, *words, machine=with_gpu(compute_capability=(8, 9))).cache.kv_cache_dtype == "fp8"
    with pytest.raises(ConfigError, match=r"needs compute capability 8\.9 .*; the NVIDIA A10 has 8\.6"):
        resolved(tmp_path, *words, machine=with_gpu(compute_capability=(8, 6), name="NVIDIA A10"))


def test_an_interpreted_start_says_so_and_takes_no_more_memory_than_a_cpus(tmp_path: Path) -> None:
    record = resolved(tmp_path, "--device", "cuda", machine=INTERPRETING)
    assert [text.splitlines()[0][:14] for text in record.warnings] == ["warning[R229]:"]
    assert record.memory.kv_cache_bytes <= 4 * GIB
    assert record.memory.activation_bytes == 0
    assert record.scheduler.cuda_graph_sizes
    assert Resolved.model_validate_json(record.model_dump_json(context={"reveal_secrets": True})) == record


def test_the_kv_cache_of_a_gpu_is_what_weights_and_steps_leave(tmp_path: Path) -> None:
    record = resolved(tmp_path, max_position_embeddings=1 << 20)
    memory = record.memory
    assert memory.budget_bytes == int(0.9 * 139 * GIB)
    assert memory.activation_bytes == 809_494_528  # 8192 tokens x 480 bytes, 256 sequences x 1000 bytes, 768 MiB
    room = memory.budget_bytes - memory.weights_bytes - memory.activation_bytes
    assert room - 64 * memory.kv_bytes_per_token < memory.kv_cache_bytes <= room
    assert record.model.max_model_len == 1 << 20


def test_each_gpu_of_a_model_has_its_part_of_the_weights_and_the_steps_of_the_whole_vocabulary(tmp_path: Path) -> None:
    alone, machine = resolved(tmp_path), with_gpu(num_visible=4)
    two = resolved(tmp_path, "-tp", "2", machine=machine)
    assert two.memory.weights_bytes < alone.memory.weights_bytes
    assert two.memory.kv_bytes_per_token == alone.memory.kv_bytes_per_token // 2
    sampled = alone.scheduler.max_num_seqs * alone.model_spec.vocab_size * (4 + 6)
    assert sampled < two.memory.activation_bytes - LINK_BYTES < alone.memory.activation_bytes
    assert two.scheduler.cuda_graph_sizes == alone.scheduler.cuda_graph_sizes
    assert two.scheduler.async_scheduling
    assert two.uses_gpus
    staged = resolved(tmp_path, "-pp", "2", machine=machine)
    assert staged.scheduler.cuda_graph_sizes == ()
    assert "exchange through the host" in staged.origin("scheduler.cuda_graph_sizes").reason
    for words, reason in ((("--kv-cache-dtype", "fp8"), "fp8 cache"), (("--cpu-offload-gb", "1"), "cpu_offload_gb")):
        with pytest.raises(ConfigError, match=reason):
            resolved(tmp_path, "-pp", "2", *words, machine=machine)


def test_a_gpu_that_others_use_gives_what_is_free(tmp_path: Path) -> None:
    record = resolved(tmp_path, machine=with_gpu(available_memory_bytes=3 * GIB))
    assert record.memory.budget_bytes == 3 * GIB
    assert "(0.9), as far as it is free (3.00 GiB), leaves beside" in str(record.origin("cache.kv_cache_memory_bytes"))
    with pytest.raises(ConfigError) as caught:
        resolved(tmp_path, machine=with_gpu(available_memory_bytes=GIB // 4))
    assert "of the 139.00 GiB of the NVIDIA H200, as far as they are free (256 MiB), is 256 MiB" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        resolved(tmp_path, "--kv-cache-memory-bytes", "139GiB")
    assert "the NVIDIA H200 has 138.00 GiB available" in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "max_num_seqs", "max_num_batched_tokens", "expected"),
    [
        # One token: 3 x 16 hidden, 2 x (4 + 2) heads x 8 and 3 x 32 intermediate are 240 elements of 4 bytes. One
        # sequence: 100 entries of the vocabulary x 10 bytes.
        ("float32", 1, 1, 960 + 1_000),
        ("float32", 1, 11, 10_560 + 1_000),
        ("float32", 3, 1, 960 + 3_000),
        ("bfloat16", 5, 7, 3_360 + 5_000),
    ],
)
def test_activations_grow_with_the_step_and_the_vocabulary(
    tmp_path: Path, dtype: str, max_num_seqs: int, max_num_batched_tokens: int, expected: int
) -> None:
    model_spec = resolved(tmp_path).model_spec
    assert step_bytes(model_spec, dtype, max_num_seqs, max_num_batched_tokens) == expected


def test_the_scores_of_an_index_over_vectors_have_memory() -> None:
    model_spec, *_ = read_config(config_of("deepseek-v4-flash"))
    one, two = (step_bytes(model_spec, "bfloat16", 1, num_tokens) for num_tokens in (1, 2))
    assert 2 * one - two == SCORES_BYTES + 10 * model_spec.vocab_size  # what does not grow with the tokens


@pytest.mark.effect("scheduler.cuda_graph_sizes", "compilation.cudagraph_capture_sizes")
@pytest.mark.parametrize(
    ("words", "sizes", "origin"),
    [
        ("", usual_sizes(256), "auto, R118: the usual sizes up to max_num_seqs, 256"),
        ("--max-num-seqs 9", (1, 2, 4, 8, 9), "auto, R118: the usual sizes up to max_num_seqs, 9"),
        ("--cuda-graph-sizes 8 2 2", (2, 8), "command line --cuda-graph-sizes"),
        ("--cuda-graph-sizes 24", (1, 2, 4, 8, 16, 24), "command line --cuda-graph-sizes"),
        ("--cuda-graph-sizes 2 300", (2,), "command line --cuda-graph-sizes"),
        ("-O.cudagraph_capture_sizes=[24]", (24,), "auto, R190: as compilation.cudagraph_capture_sizes says"),
        ("-O.cudagraph_capture_sizes=[4,1,300]", (1, 4), "auto, R190: as compilation.cudagraph_capture_sizes says"),
        ("--enforce-eager", (), "auto, R118: model.enforce_eager asks for single operations"),
        ("--batch-invariant", (), "auto, R118: model.batch_invariant has no graphs on a GPU"),
        ("--device cpu --cuda-graph-sizes 2", (), "auto, R118: graphs belong to CUDA devices"),
    ],
)
def test_graphs_are_captured_for_written_or_usual_sizes(
    tmp_path: Path, words: str, sizes: tuple[int, ...], origin: str
) -> None:
    record = resolved(tmp_path, *words.split())
    assert record.scheduler.cuda_graph_sizes == sizes
    assert str(record.origin(SIZES)) == origin


@pytest.mark.effect("compilation.level")
def test_only_level_0_captures_no_graphs(tmp_path: Path) -> None:
    assert [bool(resolved(tmp_path, f"-O{level}").scheduler.cuda_graph_sizes) for level in range(4)] == [
        *(False, True, True, True)
    ]


def test_sizes_of_graphs() -> None:
    assert usual_sizes(1) == (1,)
    assert usual_sizes(64) == (1, 2, 4, 8, 16, 24, 32, 48, 64)
    assert usual_sizes(256)[-6:] == (48, 64, 96, 128, 192, 256)
    assert usual_sizes(3000)[-5:] == (768, 1024, 1536, 2048, 3000)  # once 513 rows were filled up to 3000
    assert written_sizes([3], 256) == (1, 2)
    assert written_sizes([17], 256) == (1, 2, 4, 8, 16)
    assert written_sizes([2**31 - 1], 9) == (1, 2, 4, 8)  # once two thousand million numbers were gone through


def test_planning_ahead_can_be_written(tmp_path: Path) -> None:
    assert not resolved(tmp_path, "--no-async-scheduling").scheduler.async_scheduling
    assert resolved(tmp_path, "--device", "cpu", "--async-scheduling").scheduler.async_scheduling
    assert resolved(tmp_path, "--async-scheduling", "auto").scheduler.async_scheduling
