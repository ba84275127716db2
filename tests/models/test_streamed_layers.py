"""Tokens and log-probabilities of models whose layers are in host memory equal those of the same models without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from stoker.engine.loop.engine_core import EngineCore
from stoker.engine.models.decoder import Decoder
from stoker.engine.runner.cuda.streamed_layers import StreamedLayer
from stoker.engine.runner.runner import Runner

from .checkpoints import build, save
from .quantised import METHODS, write
from .test_device_runner import GREEDY, PROMPTS, core, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter")
SAMPLINGS = [replace(GREEDY, max_tokens=3, logprobs=3)] * len(PROMPTS)
LAYERS = 5
ALL: dict[str, Any] = {"cpu_offload_gb": 1}  # the models have less


def model_of(engine: EngineCore) -> Decoder:
    device_runner = engine._executor._steps._runner
    assert isinstance(device_runner, Runner)
    model = device_runner.loaded.model
    assert isinstance(model, Decoder)
    return model


def outputs(engine: EngineCore) -> list[tuple[list[int], object]]:
    return [(output.token_ids, output.logprobs) for output in run(engine, SAMPLINGS)]


def addresses(model: Decoder) -> list[int]:
    """Of the first matrix of each layer that has a mixer."""
    return [layer.mixer.in_proj.packed.weight.data_ptr() for layer in model.layers if layer.mixer is not None]


@pytest.mark.effect("cache.cpu_offload_gb")
@pytest.mark.effect("cache.offload_prefetch_step")
@pytest.mark.parametrize("family", ["llama with biases", "qwen3", "gemma3", "qwen3_moe"])
@pytest.mark.slow
def test_outputs_equal_those_without(family: str, tmp_path: Path) -> None:
    """With torch's kernels, which are fast here. Layers n and n + places share memory."""
    folder = save(build(family, num_hidden_layers=LAYERS, layer_types=...), tmp_path / "model")
    model = {"batch_invariant": True}
    plain = core(folder, tmp_path, "cuda", model=model)
    assert len(set(addresses(model_of(plain)))) == LAYERS
    for prefetch in (1, 3):
        cache = ALL | {"offload_prefetch_step": prefetch}
        streamed = core(folder, tmp_path, "cuda", model=model, cache=cache)
        found = addresses(model_of(streamed))
        assert all(isinstance(layer, StreamedLayer) for layer in model_of(streamed).layers)
        assert [found.index(each) for each in found] == [index % (prefetch + 1) for index in range(LAYERS)]
        assert outputs(streamed) == outputs(plain)


def test_some_of_the_layers(tmp_path: Path) -> None:
    folder = save(build("qwen3", num_hidden_layers=LAYERS), tmp_path / "model")
    model = {"batch_invariant": True}
    plain = core(folder, tmp_path, "cuda", model=model)
    layers = model_of(plain).layers
    one = sum(loadable.num_bytes for loadable in layers[0].loadables())
    streamed = core(folder, tmp_path, "cuda", model=model, cache={"cpu_offload_gb": 2.5 * one / 2**30})
    found = addresses(model_of(streamed))
    assert found[0] == found[4] != found[2]  # in two places; layers 1 and 3 are on the device
    assert len(set(found)) == 4
    assert outputs(streamed) == outputs(plain)


@pytest.mark.slow
def test_packed_codes(tmp_path: Path) -> None:
    """The CUDA runner in Triton's interpreter, whose layers are codes with scales, zeros and orders."""
    source = save(build("qwen3", num_hidden_layers=3), tmp_path / "model")
    write(source, tmp_path / "quantised", METHODS["gptq ordered"])
    plain = core(tmp_path / "quantised", tmp_path, "cuda")
    streamed = core(tmp_path / "quantised", tmp_path, "cuda", cache=ALL)
    found = addresses(model_of(streamed))
    assert found[0] == found[2] != found[1]
    assert outputs(streamed) == outputs(plain)
