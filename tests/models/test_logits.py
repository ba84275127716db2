"""The decoder alone: logits of every family and rope kind, computed in chunks over a paged cache, are transformers'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.config.checkpoint.layout import read_tensors
from stoker.config.checkpoint.match import tensors_of
from stoker.engine.kernels import KernelSet, select_kernels
from stoker.engine.layers.step_input import StepInput
from stoker.engine.models.registry import model_class
from stoker.engine.runner.earlier_ids import with_earlier_ids
from stoker.engine.runner.kv_cache import KVCache
from stoker.engine.runner.state_cache import StateCache
from stoker.engine.runner.weights import Checkpoint
from stoker.model.cache_groups import model_cache_groups
from stoker.model.quantised import OWN_CODES
from stoker.model.tensors import model_shapes

from .checkpoints import (
    VOCAB,
    WITH_ENCODERS,
    build,
    build_with_encoders,
    families,
    kinds,
    reference_logits,
    save,
)
from .conftest import Saved
from .engine import resolved

CPU = torch.device("cpu")
BLOCK_SIZE = 8
TOKENS = torch.randint(3, VOCAB, (37,), generator=torch.Generator().manual_seed(0)).tolist()


def our_logits(
    folder: Path,
    place: Path,
    features: str = "auto",
    dtype: torch.dtype = torch.float32,
    tokens: list[int] = TOKENS,
) -> torch.Tensor:
    """[37, vocab] of 37 tokens in chunks of 11, 1, 20 and 5, in blocks that lie out of order."""
    settings = resolved(folder, place)
    model_spec = settings.model_spec
    quantization = OWN_CODES if settings.model_files.own_codes else None
    kernels = select_kernels(CPU, dtype, model_spec.head_dims, features, quantization=quantization)
    model = model_class(model_spec)(model_spec, kernels, 64, dtype, CPU)
    stored = read_tensors(folder, settings.model_files.weight_files)
    files = Checkpoint(folder, tensors_of(folder, stored, model_spec))
    with torch.inference_mode():
        model.load(files)
        cache = KVCache(
            model_cache_groups(model_spec, 64, is_hybrid=False),
            *(9, BLOCK_SIZE, model_spec.keeps.tensors),
            dtype,
            states=StateCache(model_spec, 3, dtype),
            tensors_by_layer=[None if keeps is None else keeps.tensors for keeps in model_spec.kept_by_layer],
        )
        for layer in cache.layers:  # whatever was not written must not be read
            for tensor in layer:
                tensor.fill_(torch.nan)
        blocks = torch.tensor([7, 2, 5, 1, 8], dtype=torch.int32)
        parts = []
        for start, end in ((0, 11), (11, 12), (12, 32), (32, 37)):
            positions = torch.arange(start, end)
            step = StepInput(
                token_ids=torch.tensor(tokens[start:end]),
                positions=positions,
                slot_mapping=blocks[positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE,
                query_start=torch.tensor([0, end - start], dtype=torch.int32),
                context_lens=torch.tensor([end], dtype=torch.int32),
                block_tables=blocks[None, : -(-end // BLOCK_SIZE)].contiguous(),
                max_query_len=end - start,
                max_context_len=end,
                seq_slots=torch.tensor([1], dtype=torch.int32),
            )
            step = with_earlier_ids(step, model_spec, torch.tensor([[0] * len(tokens), tokens]))
            parts.append(model.logits(*model.forward(cache.by_layer(cache.views([step])), cache.layers, None)).float())
    return torch.cat(parts)


@pytest.mark.parametrize("family", families())
def test_logits_equal_transformers(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    model, folder = saved(family)
    difference = our_logits(folder, tmp_path) - reference_logits(model, TOKENS)
    assert difference.abs().max() < 1e-4


@pytest.mark.parametrize("model_type", WITH_ENCODERS)
@pytest.mark.quick_cases(3)
def test_a_model_with_encoders_is_served_as_text(model_type: str, tmp_path: Path):
    model = build_with_encoders(model_type)
    folder = save(model, tmp_path / "model")
    assert resolved(folder, tmp_path).model_spec.is_part
    assert (our_logits(folder, tmp_path) - reference_logits(model, TOKENS)).abs().max() < 1e-4


@pytest.mark.parametrize("family", kinds())
def test_torchs_kernels_give_the_same_logits(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    model, folder = saved(family)
    difference = our_logits(folder, tmp_path, "torch") - reference_logits(model, TOKENS)
    assert difference.abs().max() < 1e-4


def test_longrope_has_the_long_factors_where_the_context_may_be_long(tmp_path: Path):
    """transformers chooses by the longest position of a batch, here of 37 tokens, the engine by its longest context."""
    model = build("phi3 longrope", original_max_position_embeddings=32)
    ours = our_logits(save(model, tmp_path), tmp_path)
    assert (ours - reference_logits(model, TOKENS)).abs().max() < 1e-4


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {"rope_type": "dynamic", "factor": 2.0},
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_every_rope_kind_equals_transformers(rope: dict[str, Any], tmp_path: Path):
    model = build("llama", rope_parameters={"rope_theta": 1e4, **rope})
    ours = our_logits(save(model, tmp_path), tmp_path)
    assert (ours - reference_logits(model, TOKENS)).abs().max() < 1e-4


@pytest.mark.parametrize("family", families())
def test_bfloat16_is_as_close_to_float32_as_transformers_is(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    """The median, over three prompts: in a model with experts or an index, a rounding error that changes a choice has a
    large effect in both, on all tokens after it."""
    model, folder = saved(family)
    rounded, prompts = build(family).bfloat16(), (TOKENS, TOKENS[::-1], sorted(TOKENS))
    exact = [reference_logits(model, prompt) for prompt in prompts]
    theirs = torch.stack([reference_logits(rounded, prompt) for prompt in prompts]) - torch.stack(exact)
    found = [our_logits(folder, tmp_path, dtype=torch.bfloat16, tokens=prompt) for prompt in prompts]
    assert (torch.stack(found) - torch.stack(exact)).abs().median() < 1.25 * theirs.abs().median()


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("features", ["torch", "auto"])
def test_bfloat16_stays_within_a_tolerance_of_transformers_in_bfloat16(
    family: str, features: str, saved: Callable[[str], Saved], tmp_path: Path
):
    """Log-probabilities of both: 0.25 at most, 0.025 on average, and the same best token wherever it leads by more than
    0.25. Two such models that round in another order differ as much as each does from float32."""
    theirs = reference_logits(build(family).bfloat16(), TOKENS).log_softmax(-1)
    ours = our_logits(saved(family)[1], tmp_path, features, torch.bfloat16).log_softmax(-1)
    difference = (ours - theirs).abs()
    assert difference.max() < 0.25
    assert difference.mean() < 0.025
    best = theirs.topk(2)
    is_clear = best.values[:, 0] - best.values[:, 1] > 0.25
    assert is_clear.float().mean() > 0.25
    assert torch.equal(ours.argmax(-1)[is_clear], best.indices[is_clear, 0])


@pytest.mark.parametrize("family", families())
def test_the_checkpoint_is_described_as_the_decoder_reads_it(
    family: str, saved: Callable[[str], Saved], tmp_path: Path
):
    """Names and shapes are known without torch: files are compared with config.json before anything is built."""
    model_spec = resolved(saved(family)[1], tmp_path).model_spec
    model = model_class(model_spec)(model_spec, KernelSet(), 64, torch.float32, CPU)
    assert dict(model.wanted()) == model_shapes(model_spec)
