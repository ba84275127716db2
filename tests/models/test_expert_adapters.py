"""Adapters of experts against PEFT: the engine computes what weights with merged adapters do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.slow_cases import slow_but
from transformers import PreTrainedModel

from stoker.config.checkpoint.adapter_files import adapter_digest
from stoker.engine.api import AdapterRef, EngineRequest
from stoker.engine.kernels import select_kernels
from stoker.engine.runner import loaded_model

from .adapters import Adapter, adapter, answers, inputs_of, outputs, with_lora
from .conftest import Saved
from .engine import Engine, resolved
from .quantised import METHODS, write, write_plain
from .ranks import divided
from .test_adapters import PROMPTS, SCORED, assert_scored_by, merged_answers, prompt_scores, scores

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{each}")
    for each in ("`is_gradient_checkpointing` is deprecated:FutureWarning", "Adapter 'default'")
]
BOTH = ["experts.gate_up_proj", "experts.down_proj"]
ATTENTION = ["q_proj", "o_proj"]
CLOSE = {"atol": 2e-2, "rtol": 0.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"target_parameters": BOTH},
    "qwen3_moe": {"target_parameters": BOTH},
    "gpt_oss": {"target_parameters": BOTH},  # clamped gates that alternate with ups; inputs are stored before outputs
    "llama4": {"target_parameters": BOTH},  # the router's weights multiply the inputs
    "granitemoe": {"target_parameters": BOTH},
    "deepseek_v3": {  # shared experts are linear layers
        "target_parameters": BOTH,
        "target_modules": ["o_proj", "shared_experts.down_proj"],
    },
}


def of_experts(base: PreTrainedModel, folder: Path, seed: int, **config: Any) -> Adapter:
    """Random matrices of experts, of which each has its own, and of attention."""
    defaults: dict[str, Any] = {"target_modules": ATTENTION, "target_parameters": BOTH, "size": 4.0}
    return adapter(base, folder, seed, **{**defaults, **config})


@pytest.mark.parametrize("family", slow_but(FAMILIES, "qwen3_moe", "gpt_oss", "llama4"))
def test_each_row_of_a_batch_has_its_own_adapter(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved(family)
    own = FAMILIES[family]
    first = of_experts(base, tmp_path / "first", 1, **own)
    second = of_experts(base, tmp_path / "second", 2, **{"r": 3, "lora_alpha": 7, "use_rslora": True, **own})
    downs = of_experts(base, tmp_path / "downs", 3, target_parameters=own["target_parameters"][1:])
    engine = Engine(with_lora(folder, tmp_path))
    for rows in ([first, None, second, downs, None], [downs, first, None, first, second]):
        for prompt, output, merged in zip(PROMPTS, outputs(engine, PROMPTS, rows, SCORED), rows, strict=True):
            assert_scored_by(base if merged is None else merged.merged, prompt, output)
    assert engine.num_mixed_steps > 0


def test_an_adapter_of_experts_changes_them(saved: Callable[[str], Saved], tmp_path: Path):
    """The other tests would pass with adapters that do nothing."""
    base, folder = saved("qwen3_moe")
    own = of_experts(base, tmp_path / "own", 1, target_modules=[])
    engine = Engine(with_lora(folder, tmp_path))
    found, plain = (answers(engine, PROMPTS, rows) for rows in ([own] * 5, [None] * 5))
    assert found == merged_answers(base, [own] * 5, PROMPTS)
    assert all(changed != before for changed, before in zip(found, plain, strict=True))


def of_single_experts(base: PreTrainedModel, folder: Path, seed: int) -> Adapter:
    """An adapter with a pair of matrices for each product of each expert, as classes with a list of experts have them,
    for some of the experts. The weights are merged here: PEFT has no such class any more."""
    own = adapter(base, folder, seed, target_modules=["q_proj"])
    tensors, random = load_file(folder / "adapter_model.safetensors"), torch.Generator().manual_seed(seed)
    merged = copy.deepcopy(own.merged)
    scale, rank = 2.0, 8
    for layer, block in enumerate(merged.model.layers):
        experts, width = block.mlp.experts, base.config.moe_intermediate_size
        for expert in range(0, base.config.num_experts, 2):
            weights = {
                "gate_proj": experts.gate_up_proj.data[expert, :width],
                "up_proj": experts.gate_up_proj.data[expert, width:],
                "down_proj": experts.down_proj.data[expert],
            }
            for name, weight in weights.items():
                outputs, inputs = weight.shape
                a = torch.randn(rank, inputs, generator=random) / inputs**0.5
                b = torch.randn(outputs, rank, generator=random) / rank
                weight += scale * b @ a
                place = f"base_model.model.model.layers.{layer}.mlp.experts.{expert}.{name}"
                tensors |= {f"{place}.lora_A.weight": a, f"{place}.lora_B.weight": b}
    save_file(tensors, folder / "adapter_model.safetensors")
    return Adapter(AdapterRef(folder.name, adapter_digest(folder), str(folder)), merged, own.unmerged)


def test_single_experts_have_pairs_of_their_own(saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("qwen3_moe")
    own = of_single_experts(base, tmp_path / "own", 1)
    rows = [own, None, own, None, own]
    for prompt, output, merged in zip(
        PROMPTS, outputs(Engine(with_lora(folder, tmp_path)), PROMPTS, rows, SCORED), rows, strict=True
    ):
        assert_scored_by(base if merged is None else merged.merged, prompt, output)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_without_an_adapter_have_the_same_bits(dtype: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("qwen3_moe")
    own = of_experts(base, tmp_path / "own", 1)
    serving = Engine(with_lora(folder, tmp_path, model={"dtype": dtype}))
    expected = scores(outputs(Engine(resolved(folder, tmp_path, model={"dtype": dtype})), PROMPTS, [None] * 5, SCORED))
    assert scores(outputs(serving, PROMPTS, [None] * 5, SCORED)) == expected
    mixed = scores(outputs(serving, PROMPTS, [None, own, None, own, None], SCORED))
    assert [mixed[row] for row in (0, 2, 4)] == [expected[row] for row in (0, 2, 4)]
    assert [mixed[row] for row in (1, 3)] != [expected[row] for row in (1, 3)]


def test_replayed_steps_give_the_same_bits(
    saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The steps are captured with one adapter, and replayed with others."""
    base, folder = saved("qwen3_moe")
    every = [of_experts(base, tmp_path / str(seed), seed, r=3 + seed) for seed in range(3)]
    settings = with_lora(folder, tmp_path, {"max_loras": 2}, model={"dtype": "bfloat16"})
    engine = Engine(settings)
    if engine.runner.loaded.kernels.capture is None:
        pytest.skip("no compiler")
    with monkeypatch.context() as patch:
        patch.setattr(loaded_model, "select_kernels", lambda *a, **k: replace(select_kernels(*a, **k), capture=None))
        one_by_one = Engine(settings)
    for rows in ([every[0]] * 5, [every[1], None, every[2], None, every[1]], [None, every[2], every[0], None, None]):
        assert scores(outputs(engine, PROMPTS, rows, SCORED)) == scores(outputs(one_by_one, PROMPTS, rows, SCORED))
    launches = engine.runner.launches()
    assert launches.captured > launches.kernels


def test_prefixes_and_chunks_of_prompts(saved: Callable[[str], Saved], tmp_path: Path):
    """The prompt takes three steps, and its second half is read from the cache by requests with the same adapter."""
    base, folder = saved("qwen3_moe")
    first, second = (of_experts(base, tmp_path / str(seed), seed) for seed in (1, 2))
    engine = Engine(with_lora(folder, tmp_path))
    prompt, cached = [*range(10, 35)], []
    for own in (None, first, second, first, None, second):
        (output,) = outputs(engine, [prompt], [own])
        assert output.token_ids == merged_answers(base, [own], [prompt])[0]
        cached.append(output.num_cached_tokens)
    assert cached == [0, 0, 0, 24, 24, 24]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_bit_depends_on_the_batch(dtype: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("qwen3_moe")
    first, second = (of_experts(base, tmp_path / str(seed), seed) for seed in (1, 2))
    sections = {"model": {"dtype": dtype, "batch_invariant": True}, "cache": {"enable_prefix_caching": False}}
    engine = Engine(with_lora(folder, tmp_path, **sections))
    rows = [first, second, None, first, second]
    together = scores(outputs(engine, PROMPTS, rows, SCORED))
    alone = [scores(outputs(engine, [prompt], [own], SCORED))[0] for prompt, own in zip(PROMPTS, rows, strict=True)]
    assert alone == together


PARALLEL: dict[str, dict[str, Any]] = {
    "columns": {"tensor_parallel_size": 2},
    "experts": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    "stages": {"pipeline_parallel_size": 2},
}


@pytest.mark.parametrize(
    ("family", "kind"), [*(("qwen3_moe", kind) for kind in PARALLEL), ("gpt_oss", "columns"), ("gpt_oss", "experts")]
)
def test_several_ranks_compute_them(family: str, kind: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved(family)
    first, second = of_experts(base, tmp_path / "first", 1), of_experts(base, tmp_path / "second", 2, r=3)
    rows = [first, None, second, first, second]
    with divided(with_lora(folder, tmp_path, parallel=PARALLEL[kind])) as engine:
        assert answers(engine, PROMPTS, rows) == merged_answers(base, rows, PROMPTS)
        assert answers(engine, PROMPTS, [None] * 5) == merged_answers(base, [None] * 5, PROMPTS)


def test_experts_that_move_have_no_adapters(saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("qwen3_moe")
    own, attention = of_experts(base, tmp_path / "own", 1), of_experts(base, tmp_path / "a", 2, target_parameters=None)
    parallel = {"tensor_parallel_size": 2, "enable_expert_parallel": True, "enable_eplb": True}
    with divided(with_lora(folder, tmp_path, parallel=parallel)) as engine:
        rows = [attention, None, attention, None, None]
        assert answers(engine, PROMPTS, rows) == merged_answers(base, rows, PROMPTS)
        engine.scheduler.add(EngineRequest(request_id="own", inputs=inputs_of([5, 6], own)))
        assert engine.scheduler.schedule() is None
        (failed,) = engine.scheduler.take_failed()
        assert "because experts move between its ranks or replicas" in str(failed.error)


@pytest.mark.parametrize("name", ["gptq", "fp8 channels"])
def test_codes_of_a_checkpoint_are_the_base_of_adapters(name: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, source = saved("qwen3_moe")
    values = write(source, tmp_path / "quantised", METHODS[name])
    plain = write_plain(source, tmp_path / "plain", values)
    own = of_experts(base, tmp_path / "own", 1)
    rows = [own, None, own, None, own]
    found = answers(Engine(with_lora(tmp_path / "quantised", tmp_path)), PROMPTS, rows)
    assert found == answers(Engine(with_lora(plain, tmp_path)), PROMPTS, rows)
    assert found != answers(Engine(with_lora(plain, tmp_path)), PROMPTS, [None] * 5)


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_weights_that_are_rounded_are_the_base_of_adapters(scheme: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("qwen3_moe")
    own = of_experts(base, tmp_path / "own", 1)
    engine = Engine(with_lora(folder, tmp_path, model={"quantization": scheme}))
    found = outputs(engine, PROMPTS, [own, None, own, None, own], SCORED)
    plain = outputs(engine, PROMPTS, [None] * 5, SCORED)
    # The number of rows of an expert decides how codes of int4 are multiplied, and other rows go to other experts.
    for row in 1, 3:
        torch.testing.assert_close(prompt_scores(found[row : row + 1]), prompt_scores(plain[row : row + 1]), **CLOSE)
    for row in 0, 2, 4:
        assert (prompt_scores(found[row : row + 1]) - prompt_scores(plain[row : row + 1])).abs().max() > 0.1
