"""The estimate of a plan, which is repeated with other values, and the decision of a start use the same formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.config.plan.ask import ask_of
from stoker.config.plan.devices import find_profile, machine_of, this_machine
from stoker.config.plan.estimate import estimate, with_sizes
from stoker.config.plan.model import read_model
from stoker.config.resolve.resolve import examine

from ..deployments import GIB, MACHINE, WITH_GPU, load
from .shapes import SHAPES, config_of, write_config
from .test_described import GPTQ, LLAMA

WIDE = MACHINE.model_copy(update={"available_memory_bytes": 200 * GIB, "total_memory_bytes": 200 * GIB})
MODELS: dict[str, dict[str, Any]] = {
    "dense": config_of("qwen3-0.6b"),
    "windows": SHAPES["gemma-3-1b"][0] | {"architectures": ["Gemma3ForCausalLM"]},
    "experts": SHAPES["qwen3-30b-a3b"][0],
    "quantised": LLAMA | {"quantization_config": GPTQ},
    "hybrid": config_of("qwen3.5-0.8b"),
    "latent": SHAPES["deepseek-v2-lite"][0] | {"architectures": ["DeepseekV2ForCausalLM"]},
}
WORDS = (
    "",
    "--max-model-len 2048",
    "--max-num-seqs 3 --dtype float32",
    "--no-enable-chunked-prefill",
    "--enforce-eager",
)


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("device", ["this CPU", "this GPU", "h200", "a100-80gb"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.quick_cases(24, words=["", "--max-model-len 2048"])
def test_plan_and_start_agree(name: str, device: str, words: str, tmp_path: Path) -> None:
    model_folder = write_config(tmp_path / "model", MODELS[name])
    deployment = load(tmp_path, "{}", "--model", str(model_folder), "--skip-tokenizer-init", *words.split())
    model, here = read_model(deployment), WITH_GPU if device == "this GPU" else WIDE
    assert model.files is not None, model.why_not
    profile = find_profile(device if "this" not in device else "this-machine", here)
    decisions = examine(deployment, model.files, machine_of(profile, here)).decisions
    if "this" in device:
        profile = this_machine(here, decisions.get("device.device"))
    found, memory = (
        estimate(model, profile, with_sizes(model, profile, ask_of(decisions, model, profile))),
        decisions.memory,
    )
    assert memory is not None
    assert decisions.get("device.device") == ("cuda" if profile.is_gpu else "cpu")
    assert found.weights_bytes == memory.weights_bytes
    assert (found.num_states, found.state_bytes) == (memory.num_states, memory.state_bytes)
    assert found.kv.block_bytes == memory.kv_block_bytes
    assert found.kv_cache_bytes // found.kv.block_bytes == memory.kv_cache_bytes // memory.kv_block_bytes
    if profile.is_gpu:
        step = found.process.likely + found.activations.likely + found.graphs.likely
        assert step == memory.activation_bytes


@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("name", ["dense", "windows", "hybrid", "latent"])
def test_they_agree_about_the_largest_stage(name: str, num_stages: int, tmp_path: Path) -> None:
    """The plan grouped the layers of one stage, and took the states of the stage with most keys and values."""
    folder = write_config(tmp_path / "model", MODELS[name])
    words = ("--model", str(folder), "--skip-tokenizer-init", "--pipeline-parallel-size", str(num_stages))
    deployment = load(tmp_path, "{}", *words)
    model, profile = read_model(deployment), this_machine(WIDE, "cpu")
    assert model.files is not None, model.why_not
    decisions = examine(deployment, model.files, WIDE).decisions
    ask = with_sizes(model, profile, ask_of(decisions, model, profile), pipeline_parallel_size=num_stages)
    found, memory = estimate(model, profile, ask), decisions.memory
    assert memory is not None
    assert found.kv.block_bytes == memory.kv_block_bytes
    assert (found.num_states, found.state_bytes) == (memory.num_states, memory.state_bytes)
