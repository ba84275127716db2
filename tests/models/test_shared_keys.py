"""Layers that read the keys and values of others keep nothing, and compute of a prompt only what is needed of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.engine.api import EngineRequest, RequestInputs

from .checkpoints import reference_greedy, reference_logits
from .conftest import Saved
from .engine import GREEDY, Engine, resolved

PROMPT = list(range(10, 30))  # three chunks, of 8, 8 and 4 tokens


class _Counting:
    """A layer that notes the number of tokens that it returns."""

    def __init__(self, layer: Any) -> None:
        self.layer, self.counts = layer, list[int]()

    def __call__(self, hidden: Any, residual: Any, mix: Any) -> Any:
        hidden, residual = self.layer(hidden, residual, mix)
        self.counts.append(len(hidden))
        return hidden, residual


def tokens_by_layer(folder: Path, place: Path, prompt_logprobs: int | None = None, **cache: Any) -> list[list[int]]:
    """Of each step in which there is something to compute."""
    engine = Engine(resolved(folder, place, cache=cache))
    model = engine.runner.loaded.model
    model.stack.layers = [_Counting(layer) for layer in model.layers]
    sampling = replace(GREEDY, max_tokens=1, prompt_logprobs=prompt_logprobs)
    engine.run([EngineRequest(request_id="0", inputs=RequestInputs(PROMPT, sampling))])
    return [layer.counts for layer in model.layers]


@pytest.mark.effect("cache.kv_sharing_fast_prefill")
def test_shared_layers_compute_the_tokens_that_are_sampled(saved: Callable[[str], Saved], tmp_path: Path):
    """Layers 4, 5 and 6 read the keys of 2 and 3; layer 3 is the last that keeps some."""
    folder = saved("gemma4 shared")[1]
    assert tokens_by_layer(folder, tmp_path) == [[8, 8, 4]] * 3 + [[0, 0, 1]] + [[1]] * 3
    assert tokens_by_layer(folder, tmp_path, kv_sharing_fast_prefill=False) == [[8, 8, 4]] * 6 + [[0, 0, 1]]


def test_other_models_compute_all_tokens_in_all_layers_but_the_last(saved: Callable[[str], Saved], tmp_path: Path):
    assert tokens_by_layer(saved("qwen3")[1], tmp_path) == [[8, 8, 4], [0, 0, 1]]


def test_log_probabilities_of_a_prompt_need_all_tokens(saved: Callable[[str], Saved], tmp_path: Path):
    model, folder = saved("gemma4 shared")
    engine = Engine(resolved(folder, tmp_path))
    sampling = replace(GREEDY, max_tokens=1, prompt_logprobs=1)
    done = engine.run([EngineRequest(request_id="0", inputs=RequestInputs(PROMPT, sampling))])
    expected = reference_logits(model, PROMPT).log_softmax(-1)
    found = done["0"].prompt_logprobs
    assert found is not None
    for position, entry in enumerate(found[1:]):
        assert entry is not None
        assert entry.logprobs[0] == pytest.approx(expected[position, PROMPT[position + 1]].item(), abs=1e-4)


def test_a_shared_layer_has_the_cache_of_its_source(saved: Callable[[str], Saved], tmp_path: Path):
    engine = Engine(resolved(saved("gemma4 shared")[1], tmp_path))
    layers = engine.runner.loaded.cache.layers
    assert engine.runner.loaded.model.model_spec.keys_of == (None, None, None, None, 3, 3, 2)
    assert all(layers[index] is layers[source] for index, source in ((4, 3), (5, 3), (6, 2)))


def test_keys_that_are_the_values_are_held_once(saved: Callable[[str], Saved], tmp_path: Path):
    """The rows of the keys were in the matrix twice: as keys, and as values."""
    engine = Engine(resolved(saved("gemma4")[1], tmp_path))
    spec = engine.runner.loaded.model.model_spec
    attention = spec.layers[3].mixer
    projection = engine.runner.loaded.model.layers[3].mixer.in_proj
    assert not attention.has_own_values
    assert projection.packed.out_features == (attention.num_heads + attention.num_kv_heads) * attention.head_dim


def test_the_scalar_of_a_layer_is_read_once(saved: Callable[[str], Saved], tmp_path: Path):
    """On a GPU each reading waits for the device, and a step with one cannot be captured."""
    model, folder = saved("gemma4")
    engine = Engine(resolved(folder, tmp_path))
    for layer in engine.runner.loaded.model.layers:
        layer.scalar.values = torch.empty(1, device="meta")  # its numbers cannot be read
    assert engine.generate([PROMPT]) == [reference_greedy(model, PROMPT, 24)]
