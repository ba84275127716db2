"""The whole engine with Triton's kernels, in the interpreter: the tokens of the reference, with chunked prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from stoker.config.checkpoint.layout import read_tensors
from stoker.engine.api import SamplingParams
from stoker.engine.kernels.gpu.kernels import gpu_kernels
from stoker.engine.kernels.gpu.launch import is_interpreted
from stoker.engine.layers.step_input import StepInput
from stoker.engine.models.registry import model_class
from stoker.engine.runner import loaded_model
from stoker.engine.runner.kv_cache import KVCache
from stoker.engine.runner.weights import Checkpoint
from stoker.model.cache_groups import all_in_one
from stoker.model.latent import SPARSE_TABLE

from .checkpoints import reference_logits
from .conftest import Saved
from .engine import Engine, resolved

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
SAMPLING = SamplingParams(temperature=0, max_tokens=6)
PROMPTS = [[5, 6, 7], list(range(20, 43)), [9], list(range(20, 38))]


INTERPRETED = pytest.mark.skipif(torch.cuda.is_available(), reason="compiled kernels take no tensors of the CPU")


@INTERPRETED
@pytest.mark.parametrize(
    "family",
    [
        *("qwen3", "gemma2", "cohere2", "olmo3", "granite", "starcoder2", "deepseek_v3", "deepseek_v4"),
        "dots3",
        *("falcon_mamba", "jamba"),
    ],
)
def test_tokens_equal_those_of_the_reference(
    family: str, saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = saved(family)[1]
    expected = Engine(resolved(folder, tmp_path, model={"enforce_eager": True})).generate(PROMPTS, SAMPLING)
    assert is_interpreted()
    kernels = gpu_kernels(CPU, max_rows=32)
    monkeypatch.setattr(loaded_model, "select_kernels", lambda *_, **__: kernels)
    engine = Engine(resolved(folder, tmp_path))
    assert engine.generate(PROMPTS, SAMPLING) == expected
    assert engine.num_mixed_steps > 0
    assert engine.runner.info().kernels["paged_attention"].startswith(("triton ", SPARSE_TABLE["paged_attention"]))


@INTERPRETED
def test_a_plan_is_not_reused_for_the_next_step_in_the_same_tensors(saved: Callable[[str], Saved], tmp_path: Path):
    """Captured graphs reuse their input tensors; plans of the previous step must not be found."""
    reference, folder = saved("qwen2")  # windows in some layers
    settings = resolved(folder, tmp_path)
    model_spec = settings.model_spec
    model = model_class(model_spec)(model_spec, gpu_kernels(CPU, max_rows=1), 80, torch.float32, CPU)
    tokens = [3 + 7 * place % 50 for place in range(70)]
    table = torch.tensor([[1, 2, 3, 4, 5]], dtype=torch.int32)

    def step_of(count: int) -> StepInput:
        return StepInput(
            token_ids=torch.tensor(tokens[:count]),
            positions=torch.arange(count),
            slot_mapping=torch.arange(16, 16 + count),
            query_start=torch.tensor([0, count], dtype=torch.int32),
            context_lens=torch.tensor([count], dtype=torch.int32),
            block_tables=table,
            max_query_len=count,
            max_context_len=80,
        )

    with torch.inference_mode():
        model.load(Checkpoint(folder, read_tensors(folder, settings.model_files.weight_files)))
        cache = KVCache(all_in_one(model_spec.num_layers), 6, 16, model_spec.keeps.tensors, torch.float32)
        expected = reference_logits(reference, tokens)
        assert (
            model.logits(*model.forward(cache.by_layer([step_of(70)]), cache.layers, None)) - expected
        ).abs().max() < 1e-3
        step = step_of(1)
        for position in (0, 69):  # one tile of keys, then two
            step.token_ids.fill_(tokens[position])
            step.positions.fill_(position)
            step.slot_mapping.fill_(16 + position)
            step.context_lens.fill_(position + 1)
            found = model.logits(*model.forward(cache.by_layer([step]), cache.layers, None))
            assert (found[0] - expected[position]).abs().max() < 1e-3
