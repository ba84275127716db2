"""A plan says of each device what the start decides for it, of all that is in its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.config import MachineSpec
from stoker.config.memory.memory_plan import MemoryPlan
from stoker.config.plan.devices import find_profile, machine_of, this_machine
from stoker.config.plan.estimate import Estimate
from stoker.config.plan.model import read_model
from stoker.config.plan.plan import make_plan
from stoker.config.resolve.resolve import examine

from ..deployments import GIB, H200, INTERPRETING, MACHINE, load
from .shapes import SHAPES, config_of, write_config
from .test_described import GPTQ, LLAMA

WIDE = MACHINE.model_copy(update={"available_memory_bytes": 200 * GIB, "total_memory_bytes": 200 * GIB})
TWO_GPUS = H200.model_copy(update={"num_visible": 2})
MACHINES: dict[str, MachineSpec] = {
    "a CPU": WIDE,
    "a CPU with 12 bits": WIDE.model_copy(update={"keeps_twelve_bits": True, "keeps_codes": True}),
    "a GPU": WIDE.model_copy(update={"gpu": TWO_GPUS}),
    "a GPU that others use": WIDE.model_copy(
        update={"gpu": TWO_GPUS.model_copy(update={"available_memory_bytes": 60 * GIB})}
    ),
    "an interpreter": INTERPRETING,
}
MODELS: dict[str, dict[str, Any]] = {
    "dense": config_of("qwen3-0.6b"),
    "windows": SHAPES["gemma-3-1b"][0] | {"architectures": ["Gemma3ForCausalLM"]},
    "experts": SHAPES["qwen3-30b-a3b"][0],
    "quantised": LLAMA | {"quantization_config": GPTQ},
    "hybrid": config_of("qwen3.5-0.8b"),
    "latent": SHAPES["deepseek-v2-lite"][0] | {"architectures": ["DeepseekV2ForCausalLM"]},
    "states": {
        "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "vocab_size": 50288, "hidden_size": 2560,
        "num_hidden_layers": 8, "num_heads": 80, "head_dim": 64, "state_size": 128, "n_groups": 1, "conv_kernel": 4,
        "expand": 2,
    },
}  # fmt: skip
WORDS = (
    "",
    "--max-model-len 2048",
    "--max-num-seqs 3 --dtype float32",
    "--no-enable-chunked-prefill",
    "--enforce-eager",
    "--preset long-context",
    "--kv-cache-memory-bytes 1GiB",
)


def planned_and_decided(folder: Path, name: str, device: str, *words: str) -> tuple[Estimate, MemoryPlan]:
    """device: one of MACHINES, or a profile."""
    machine = MACHINES.get(device, WIDE)
    words = ("--device", "cuda", *words) if machine is INTERPRETING else words
    model_folder = write_config(folder / "model", MODELS[name])
    deployment = load(folder, "{}", "--model", str(model_folder), "--skip-tokenizer-init", *words)
    model, profile = read_model(deployment), find_profile("this-machine" if device in MACHINES else device, machine)
    assert model.files is not None, model.why_not
    decisions = examine(deployment, model.files, machine_of(profile, machine)).decisions
    if device in MACHINES:
        profile = this_machine(decisions.machine, decisions.get("device.device"))
    found = make_plan(model, profile, decisions).estimate
    assert decisions.memory is not None
    assert found.max_model_len == decisions.get("model.max_model_len")
    return found, decisions.memory


def assert_same(found: Estimate, memory: MemoryPlan) -> None:
    assert {name: getattr(found, name) for name in MemoryPlan.model_fields} == dict(memory)
    if memory.activation_bytes:
        assert found.process.likely + found.activations.likely + found.graphs.likely == memory.activation_bytes


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("device", [*MACHINES, "h200", "a100-80gb"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.quick_cases(24, words=["", "--max-model-len 2048"])
def test_plan_and_start_agree(name: str, device: str, words: str, tmp_path: Path) -> None:
    assert_same(*planned_and_decided(tmp_path, name, device, *words.split()))


@pytest.mark.parametrize("words", ["-pp 2", "-pp 3", "-tp 2", "-dp 2 --enable-expert-parallel"])
@pytest.mark.parametrize("device", MACHINES)
@pytest.mark.parametrize("name", ["dense", "windows", "experts", "hybrid", "latent", "quantised"])
@pytest.mark.quick_cases(16)
def test_they_agree_about_one_process_of_several(name: str, device: str, words: str, tmp_path: Path) -> None:
    """The plan rounded what a rank has of the weights, and counted NCCL for the stages of a pipeline, the start for no
    ranks."""
    assert_same(*planned_and_decided(tmp_path, name, device, *words.split()))


@pytest.mark.parametrize("words", ["--kv-offloading-size 1", "--cpu-offload-gb 1"])
@pytest.mark.parametrize("device", ["a GPU", "an interpreter"])
def test_they_agree_about_what_is_outside_of_a_gpu(device: str, words: str, tmp_path: Path) -> None:
    """An interpreter has the memory of the host: the start did not count stored blocks there, the plan kept all weights
    of the model."""
    found, memory = planned_and_decided(tmp_path, "dense", device, *words.split())
    assert_same(found, memory)
    assert memory.beside_bytes == (GIB if device == "an interpreter" and "kv" in words else 0)


def test_a_gpu_that_others_use_is_planned_with_what_is_free(tmp_path: Path) -> None:
    found, _ = planned_and_decided(tmp_path, "latent", "a GPU that others use", "--dtype", "float32")
    assert found.budget_bytes == 60 * GIB
    assert found.status == "may not fit"
    assert "leave nothing for the KV cache" in found.reason


def test_the_number_of_sequences_without_a_kv_cache_is_that_of_the_states(tmp_path: Path) -> None:
    found, memory = planned_and_decided(tmp_path, "states", "h200")
    assert (found.kv_cache_bytes, found.kv.block_bytes) == (0, 0)
    assert memory.num_kv_blocks > 0
    assert found.kv.num_sequences(0, 1024) > found.num_states
